"""What a program charges an assignment is what it costs, step by step."""

from __future__ import annotations

import random

import pytest
import torch
from tests.compiler.search.hand_made import planner
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.draw import draw_choices
from partita.compiler.search.fold import Fold
from partita.compiler.search.highs import make_highs, run_highs
from partita.compiler.search.linear import value_of
from partita.compiler.search.placement_program import PlacementProgram
from partita.compiler.search.problem import Problem, cost_of
from partita.compiler.search.worthwhile import everything


def charged(problem: Problem, choices: tuple[int, ...]) -> float:
    """Return what a program charges for an assignment."""
    fold = Fold.none(problem)
    placed = PlacementProgram(fold, everything(fold))
    for index, own in enumerate(choices):
        for at, _, taken in placed.choices_of(index):
            placed.program.require(taken, at == own, at == own)
    highs = make_highs(10.0, 1, 0.0)
    highs.passModel(placed.program.to_highs(1e6))
    values = run_highs(highs).values
    assert values is not None
    return value_of(placed.program.cost, values.tolist())


class Layers(nn.Module):
    """Two layers, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x))).square().sum()


@pytest.mark.parametrize("microbatches", [1, 2, 4])
def test_boxings_are_paid_as_often_as_a_step_has_them(microbatches: int) -> None:
    x, rng = torch.randn(8, 16), random.Random(microbatches)
    found = planner(Layers(), x, mesh=Mesh(dp=2), microbatches=microbatches).posed
    for _ in range(6):
        choices = tuple(draw_choices(rng, found))
        cost = cost_of(found.problem, choices)
        assert charged(found.problem, choices) == pytest.approx(cost, rel=1e-9)
