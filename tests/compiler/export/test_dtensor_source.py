"""Ops that DTensor has no rule for, or a wrong one, have the numbers of one process."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from tests.torch_ranks import END, START, run_ranks

from partita.compiler.export.dtensor_source import HEAD, TAIL

CALLS = """\
import torch, torch.nn.functional as F

torch.manual_seed(0)
x, y = torch.randn(2, 5, 4, 6, 6).double()
w = torch.randn(4, 4, 3, 3).double()
labels = torch.tensor([1, -100, 3, -100, -100])
pixels = torch.randint(-1, 4, (5, 6, 6))


def classes(x):
    return x.flatten(2).sum(-1)


def written(x):
    made = x * 2.0
    made[:, :, :1] = torch.ones(())
    return made.square().sum()


def written_part(x):
    made = x * 2.0
    made[1:4, 1:3][:, :, 0] *= 3.0
    made[0] = made[4]
    with torch.no_grad():
        made.chunk(2)[1].mul_(2.0)
    return (made * x).square().sum()


def by_class(x):
    return F.cross_entropy(classes(x), labels, torch.arange(4.0).double())


def batch_norm(x):
    return F.batch_norm(x, None, None, training=True)


def running(x):
    held = [x.detach().new_zeros(4), x.detach().new_ones(4)]
    normed = F.batch_norm(x, *held, training=True)
    return (normed * held[0].view(4, 1, 1)).sum() + sum(h.sum() for h in held)


def attend(x):
    return F.scaled_dot_product_attention(x, x * 2, x).square().sum()


CALLS = {
    "mse": lambda x, y, w: F.mse_loss(x, y),
    "smooth l1": lambda x, y, w: F.smooth_l1_loss(x, y),
    "huber": lambda x, y, w: F.huber_loss(x, y),
    "huber sum": lambda x, y, w: F.huber_loss(x, y, reduction="sum"),
    "huber none": lambda x, y, w: F.huber_loss(x, y, reduction="none").square().sum(),
    "bce": lambda x, y, w: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "logits": lambda x, y, w: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "margin": lambda x, y, w: F.soft_margin_loss(x, y.sign()),
    "ignored": lambda x, y, w: F.cross_entropy(classes(x), labels),
    "weighted": lambda x, y, w: by_class(x),
    "pixels": lambda x, y, w: F.cross_entropy(x, pixels, ignore_index=-1),
    "conv": lambda x, y, w: F.conv2d(x, w, w[0, 0, 0].new_ones(4)).square().sum(),
    "strided": lambda x, y, w: F.conv2d(x, w, stride=2, padding=1).square().mean(),
    "transposed": lambda x, y, w: (F.conv_transpose2d(x, w, padding=1) * y).sum(),
    "group norm": lambda x, y, w: (F.group_norm(x, 2) * y).sum(),
    "batch norm": lambda x, y, w: (batch_norm(x) * y).sum(),
    "running": lambda x, y, w: running(x),
    "attention": lambda x, y, w: attend(x),
    "written": lambda x, y, w: written(x),
    "written part": lambda x, y, w: written_part(x),
}


def step(call, x, y, w):
    x, w = (tensor.clone().requires_grad_() for tensor in (x, w))
    loss = call(x, y, w)
    loss.sum().backward()
    return [loss.detach(), x.grad, w.grad]
"""

RANKS = """\
import calls, source

mesh = source.init_device_mesh("cpu", (2,))
found = {}
for name, call in calls.CALLS.items():
    for cut in (source.Shard(0), source.Shard(1), source.Replicate()):
        placed = [
            source.distribute_tensor(tensor, mesh, [cut])
            for tensor in (calls.x, calls.y, calls.w)
        ]
        with source.every_op():
            made = calls.step(call, *placed)
        found[name, str(cut)] = [x if x is None else x.full_tensor() for x in made]
save(found)
"""


@pytest.mark.dist
def test_every_op_has_the_numbers_of_whole_tensors(tmp_path: Path) -> None:
    (tmp_path / "calls.py").write_text(CALLS)
    (tmp_path / "source.py").write_text(HEAD + TAIL)
    (tmp_path / "script.py").write_text(START + RANKS + END)
    run_ranks(tmp_path / "script.py", 2)
    known: dict[str, object] = {}
    exec(CALLS, known)
    step, calls, *tensors = (known[n] for n in ("step", "CALLS", "x", "y", "w"))
    assert callable(step)
    assert isinstance(calls, dict)
    wanted = {name: step(call, *tensors) for name, call in calls.items()}
    found = torch.load(tmp_path / "rank0.pt")
    assert len(found) == 3 * len(wanted)
    for (name, cut), tensors in found.items():
        torch.testing.assert_close(
            tensors, wanted[name], msg=lambda told, at=(name, cut): f"{at}: {told}"
        )


DISPATCH_MODE = "torch.utils._python_dispatch"
"""Torch's documents call it so: ``torch.library.register_torch_dispatch``."""


def test_it_keeps_to_public_names_of_torch() -> None:
    private: set[str] = set()
    for node in ast.walk(ast.parse(HEAD + TAIL)):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                private |= {part for part in [module] if "._" in part}
                private |= {a.name for a in names if a.name.startswith("_")}
            case ast.Import(names=names):
                private |= {a.name for a in names if "._" in a.name}
            case ast.Attribute(value=ast.Name(id="aten")):
                pass  # an op's own name
            case ast.Attribute(attr=name) if name.startswith("_"):
                private |= set() if name.startswith("__") else {name}
            case _:
                pass
    assert private == {DISPATCH_MODE}
