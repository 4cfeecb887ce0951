"""A captured program has the casts that torch.autocast makes, and no others."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tests.compiler.capture.small_models import Rounding
from tests.models import zoo
from tests.slow import slow
from torch import Tensor, nn
from torch.nn import functional as nn_functional

import partita as pt
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.capture.mixed_precision import PRECISIONS, autocasting
from partita.compiler.capture.torch_private import DispatchMode
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.program import (
    Phase,
    info,
    op_name,
    operands,
    type_of,
    value_of,
)

HALF = torch.bfloat16


def casts(captured: Captured, phase: Phase = Phase.FORWARD) -> Counter[str]:
    """Return what is cast to what in a phase, and how often."""
    return Counter(
        f"{type_of(operands(node)[0])} -> {info(node).types[0]}"
        for node in captured.program.calls()
        if op_name(node) == "aten._to_copy.default" and info(node).phase is phase
    )


class Casts(DispatchMode):
    """Notes what eager ops cast."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[torch.dtype, torch.dtype, tuple[int, ...]]] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and args[0].is_floating_point():
            self.found.add((args[0].dtype, made.dtype, tuple(made.shape)))
        return made


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["mlp", "gpt2", slow("bert"), slow("opt"), "encoder"])
def test_the_forward_casts_what_autocast_does(name: str, precision: str) -> None:
    model, args, kwargs = zoo.ZOO[name]()
    captured = capture(model, args, kwargs, precision=precision)
    with autocasting(precision), Casts() as eager:
        model(*args, **kwargs)
    own: set[tuple[torch.dtype, torch.dtype, tuple[int, ...]]] = set()
    for node in captured.program.calls():
        made = info(node).types[0]
        is_forward = info(node).phase is Phase.FORWARD
        if op_name(node) != "aten._to_copy.default" or not is_forward:
            continue
        cast = type_of(operands(node)[0]).dtype
        assert made is not None
        if cast.is_floating_point:
            own.add((cast, made.dtype, made.shape))
    assert own == eager.found
    assert any(dtype is PRECISIONS[precision] for _, dtype, _ in own)


class Shared(nn.Module):
    """Uses one layer twice, and a table as it is and as weights."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)
        self.layer = nn.Linear(4, 4)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.layer(self.layer(self.table(ids)))
        logits = nn_functional.linear(hidden, self.table.weight)
        return nn_functional.cross_entropy(logits, ids)


IDS = torch.arange(6)


def test_a_parameter_is_cast_once_and_its_gradient_is_its_own() -> None:
    captured = capture(Shared(), (IDS,), {}, precision="bfloat16")
    forward = casts(captured)
    assert forward["f32[4, 4] -> bf16[4, 4]"] == 1
    assert forward["f32[8, 4] -> bf16[8, 4]"] == 1
    backward = casts(captured, Phase.BACKWARD_WEIGHT)
    assert backward["bf16[4, 4] -> f32[4, 4]"] == 2  # added up in float32
    entering = [info(node).types for node, _ in captured.program.placeholders()]
    assert not any(type_ and type_.dtype is HALF for (type_,) in entering)
    for node, _ in captured.program.results():
        assert type_of(value_of(node)).dtype is torch.float32


def test_programs_of_other_precisions_have_other_fingerprints() -> None:
    found = {
        capture(Shared(), (IDS,), {}, precision=precision).fingerprint
        for precision in (None, *PRECISIONS)
    }
    assert len(found) == 3


class Masked(nn.Module):
    """Attends where a first guess, of what is learned, says to, as Mask2Former does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        guess = hidden @ hidden.mT
        mask = torch.zeros(6, 6).masked_fill((guess < 0).detach(), -9.0)
        shift = guess.detach() + mask
        made = nn_functional.scaled_dot_product_attention(hidden, hidden, hidden, shift)
        return made.square().sum()


def test_attention_under_a_mask_that_needs_no_gradient_is_one_op() -> None:
    captured = capture(Masked(), (torch.randn(2, 2, 6, 4),), {}, precision="bfloat16")
    forward = [n for n in captured.program.calls() if info(n).phase is Phase.FORWARD]
    assert "partita.attention.default" in map(op_name, forward)


class Forced(nn.Module):
    """Predicts an energy, and forces, which are its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        at = x.clone().requires_grad_()
        energy = self.layer(at).tanh().square().sum()
        (forces,) = torch.autograd.grad(energy, at, create_graph=True)
        return energy + forces.square().mean()


def test_a_model_that_differentiates_is_cast_too() -> None:
    model, x = Forced(), torch.randn(6, 4)
    options = pt.Options(precision="bfloat16", hardware="cpu-gloo-free")
    plan = pt.plan(model, x, mesh="tp=2", options=options)
    assert any(HALF in {t.dtype for t in n.types if t} for n in plan.nodes.values())
    report = pt.verify(model, x, plan=plan)
    assert report.ok, str(report)


class Asking(nn.Module):
    """Is told that it is autocast, and computes a part in float32 all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        hidden = x @ self.weight
        assert torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", enabled=False):
            hidden = hidden.float() @ self.weight
        return hidden.sum()


def test_a_part_that_is_not_autocast_stays_in_float32() -> None:
    captured = capture(Asking(), (torch.ones(2, 4),), {}, precision="bfloat16")
    products = [
        str(info(node).types[0])
        for node in captured.program.calls()
        if op_name(node) == "aten.mm.default" and info(node).phase is Phase.FORWARD
    ]
    assert products == ["bf16[2, 4]", "f32[2, 4]"]


class Mixing(nn.Module):
    """Gives attention two dtypes, as rotary embeddings in float32 do."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 8)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        heads = self.project(x).unflatten(-1, (2, 4)).transpose(1, 2)
        turned = heads.float() * 2
        return nn_functional.scaled_dot_product_attention(
            turned, turned, heads, attn_mask=mask
        ).sum()


def test_attention_takes_what_autocast_gives_it() -> None:
    batch = torch.ones(2, 3, 8), torch.zeros(2, 2, 3, 3)
    captured = capture(Mixing(), batch, {}, precision="bfloat16")
    (attention,) = (
        node
        for node in captured.program.calls()
        if op_name(node) == "partita.attention.default"
    )
    taken = {type_of(value).dtype for value in operands(attention)}
    assert taken == {HALF}


def test_a_model_with_its_own_backward_is_cast_too() -> None:
    captured = capture(Rounding(), (IDS,), {}, precision="bfloat16")
    assert casts(captured)["f32[10, 4] -> bf16[10, 4]"] == 1


def test_statistics_of_norms_are_of_the_dtype_that_kernels_return() -> None:
    norm = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    captured = capture(
        norm, (torch.ones(2, 4),), {}, loss=lambda y: y.sum(), precision="bfloat16"
    )
    (node,) = (
        n
        for n in captured.program.calls()
        if op_name(n) == "aten.native_layer_norm.default"
    )
    made = torch.native_layer_norm(
        torch.ones(2, 4, dtype=HALF), [4], torch.ones(4), torch.zeros(4), 1e-5
    )
    assert [t and t.dtype for t in info(node).types] == [x.dtype for x in made]


class Failing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.sum().item()


@torch.library.custom_op("partita_tests::once", mutates_args=())
def once(x: Tensor) -> Tensor:
    """Have no type when it is traced a second time."""
    return x.clone()


TRACED: list[torch.Size] = []


@once.register_fake
def _once_type(x: Tensor) -> Tensor:
    TRACED.append(x.shape)
    if len(TRACED) > 1:
        raise RuntimeError("traced twice")
    return torch.empty_like(x)


class TracedOnce(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return once(x).sum()


def test_autocast_is_as_before_when_a_forward_that_was_exported_fails() -> None:
    TRACED.clear()
    with pytest.raises(CaptureFailed, match="traced twice"):
        capture(TracedOnce(), (torch.ones(2),), {}, precision="float16", train=False)
    assert len(TRACED) > 1  # after the export, and as it is run
    assert not torch.is_autocast_enabled("cpu")
    assert torch.autocast_increment_nesting() == 1
    assert torch.autocast_decrement_nesting() == 0


def test_autocast_is_as_before_when_a_capture_is_over() -> None:
    capture(Shared(), (IDS,), {}, precision="float16")
    with pytest.raises(CaptureFailed):
        capture(Failing(), (torch.ones(2),), {}, precision="float16")
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") is HALF
    assert torch.is_autocast_cache_enabled()


class Leaning(nn.Module):
    """Attention whose mask leans by head, of three dims."""

    slopes: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.made = nn.Linear(16, 48)
        self.register_buffer("slopes", torch.tensor([0.5, 0.25]))

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[batch, positions, 16]``."""
        q, k, v = self.made(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        apart = torch.arange(x.shape[1]) - torch.arange(x.shape[1])[:, None]
        mask = self.slopes[:, None, None] * apart
        made = nn_functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return made.square().mean()


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_a_mask_of_three_dims_is_taken(precision: str | None) -> None:
    torch.manual_seed(0)
    model, x = Leaning(), torch.randn(4, 6, 16)
    options = pt.Options(precision=precision)
    plan = pt.plan(model, x, mesh=pt.Mesh(tp=2), options=options)
    assert any("attention" in node.op for node in plan.nodes.values())
    report = pt.verify(model, x, plan=plan)
    assert report.ok, report
