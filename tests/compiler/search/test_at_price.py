"""What is cheapest with memory at a price, searched once for each."""

from __future__ import annotations

import pytest
from tests.models.captured import captured

import partita as pt
from partita.compiler.search import at_price
from partita.compiler.search.at_price import AtPrice
from partita.compiler.search.fold import Fold
from partita.compiler.search.memory_price import MemoryPrice
from partita.compiler.search.parts import ROUGH, Effort
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Problem
from partita.compiler.search.solver import solve
from partita.one_mesh.planner import Planner


def posed() -> Posed:
    _, known = captured("mlp")
    return Planner(known, "mlp", pt.Mesh(dp=2), pt.Options()).posed


def test_each_price_is_searched_once_at_the_same_moments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Problem] = []

    def counted(problem: Problem, limit_s: float, fold: Fold, effort: Effort) -> object:
        asked.append(problem)
        assert effort == ROUGH, "a number of passes ends it, not the time"
        return solve(problem, limit_s, fold, effort)

    monkeypatch.setattr(at_price, "solve", counted)
    problem = posed()
    searched = AtPrice(problem.fold.class_of, "adamw")
    first = searched.solved(problem, (3,), 1e-9, 10.0)
    assert searched.solved(problem, (3,), 1e-9, 10.0) is first
    assert len(asked) == 1
    kept = searched.solved(problem, (3,), 1e-9, 10.0, MemoryPrice.kept_problem)
    assert kept is searched.solved(problem, (3,), 1e-9, 10.0, MemoryPrice.kept_problem)
    assert len(asked) == 2
    searched.solved(problem, (3,), 2e-9, 10.0)
    searched.solved(problem, (3, 5), 1e-9, 10.0)
    searched.solved(posed(), (3,), 1e-9, 10.0)
    assert len(asked) == 5


def test_no_assignment_costs_less_with_its_memory() -> None:
    problem = posed()
    searched = AtPrice(problem.fold.class_of, "adamw")
    free = solve(problem.problem, 10.0, problem.fold)
    priced = searched.fold(problem, (3,), 1e-6)
    found = searched.solved(problem, (3,), 1e-6, 10.0)
    assert priced.cost_of(found.choices) <= priced.cost_of(free.choices) * (1 + 1e-9)
