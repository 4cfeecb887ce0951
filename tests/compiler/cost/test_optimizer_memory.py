"""What torch's optimizers hold and allocate, under its profiler."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from partita.compiler.cost.optimizer_memory import moments_of, update_bytes
from partita.runtime.measure_memory import measure_memory

MAKERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
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
