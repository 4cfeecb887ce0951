"""A program of one rank: compiled as a whole unless that fails."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.errors import CompilationFailed
from partita.runtime import alone

WIDTH, HIDDEN, BATCH = 8, 16, 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Return the loss and an output."""
        out = self.down(torch.tanh(self.up(x)))
        return {"loss": out.square().mean(), "out": out}


def check_trains(model: Model, x: Tensor, **options: Any) -> None:
    """Check a step's gradients, and what the forward alone makes."""
    asked = pt.Options(fuse=True, **options)
    plan = pt.plan(model, x, mesh=pt.Mesh(dp=1), options=asked)
    program = pt.compile(copy.deepcopy(model), plan, device="cpu")
    found = program.step(x)
    loss = model(x)["loss"]
    loss.backward()
    torch.testing.assert_close(found, loss.detach())
    for one, other in zip(program.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    torch.testing.assert_close(program(x)["out"], model(x)["out"])


@pytest.mark.parametrize("microbatches", [1, 2])
def test_what_cannot_be_compiled_as_a_whole_runs_in_regions(
    monkeypatch: pytest.MonkeyPatch, microbatches: int
) -> None:
    def fail(chains: object) -> None:
        raise CompilationFailed("there is no compiler")

    monkeypatch.setattr(alone, "compile_together", fail)
    with pytest.warns(UserWarning, match="runs in regions: there is no compiler"):
        check_trains(Model(), torch.randn(BATCH, WIDTH), microbatches=microbatches)
    plan = pt.plan(Model(), torch.randn(BATCH, WIDTH), mesh=pt.Mesh(dp=1))
    with pytest.raises(CompilationFailed):
        pt.compile(Model(), plan, device="cpu", compilation="whole")


def test_it_is_compiled_as_a_whole_unless_asked_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[object] = []
    together = alone.compile_together

    def count(chains: Any) -> Any:
        compiled.append(chains)
        return together(chains)

    monkeypatch.setattr(alone, "compile_together", count)
    check_trains(Model(), torch.randn(BATCH, WIDTH))
    assert len(compiled) == 2  # the step, and the forward alone
