"""What torch's optimizers hold and allocate, under its profiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

import partita as pt
from partita.compiler.cost.memory import timeline
from partita.compiler.cost.optimizer_memory import MIXED, moments_of, update_bytes
from partita.compiler.cost.timeline import Category
from partita.runtime.measure_memory import measure_memory

MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "momentum-sgd": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "fused-adamw": partial(torch.optim.AdamW, fused=True),
}
SHAPES = (64, 64), (256, 64), (8,)
SIZES = [torch.Size(shape).numel() * 4 for shape in SHAPES]
SCALARS = 64
"""Bytes of single numbers, one or two a parameter, which are not counted."""


def measured(name: str, device: torch.device) -> tuple[int, int]:
    """Return the bytes that an optimizer holds, and those it takes for a step."""
    parameters = [torch.ones(shape, device=device) for shape in SHAPES]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = MAKERS[name](parameters, lr=1e-3)
    optimizer.step()
    states = [x for entry in optimizer.state.values() for x in entry.values()]
    held = sum(x.untyped_storage().nbytes() for x in states if x.device == device)
    memory = measure_memory(lambda: optimizer.step(), (), device)
    return held, memory.peak_bytes


@pytest.mark.parametrize("name", MAKERS)
def test_on_the_cpu(name: str) -> None:
    held, taken = measured(name, torch.device("cpu"))
    assert held == pytest.approx(moments_of(name) * sum(SIZES), abs=SCALARS)
    assert taken == pytest.approx(update_bytes(name, SIZES, "cpu"), abs=SCALARS)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MAKERS)
def test_on_a_gpu(name: str) -> None:
    _, taken = measured(name, torch.device("cuda", 0))
    want = update_bytes(name, SIZES, "cuda")
    assert taken == pytest.approx(want, abs=4096)  # blocks of 512 bytes


@pytest.mark.parametrize("zero", [False, True])
def test_mixed_holds_copies_in_f32(zero: bool) -> None:
    numel, ways = 64 * 64, 2
    pin = "B; use=B; optimizer=S(0)" if zero else "B; use=B"
    options = pt.Options(
        optimizer=MIXED,
        pins={"weight": pin},
        loss=lambda y: y.float().square().sum(),
    )
    model = torch.nn.Linear(64, 64, bias=False).bfloat16()
    x = torch.ones(8, 64, dtype=torch.bfloat16)
    plan = pt.plan(model, x, mesh="dp=2", options=options)
    held = timeline(plan).held
    kept = sum(h.num_bytes for h in held if h.category is Category.OPTIMIZER)
    # the sum of gradients, of what is stored; copy and moments, of what is updated
    assert kept == 4 * numel + 12 * numel // (ways if zero else 1)
