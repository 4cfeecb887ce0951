"""With sums that leave at their least, the cheapest assignment bounds every plan."""

from __future__ import annotations

import random
from functools import cache

import pytest
from tests.compiler.search.hand_made import machine
from tests.models.captured import captured

import partita as pt
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.beside import Leaving, with_sums_beside
from partita.compiler.search.decide import Found
from partita.compiler.search.draw import draw_choices
from partita.compiler.search.problem import cost_of
from partita.compiler.search.solver import solve
from partita.planner import Planner

MACHINE = machine(flops_per_s=1e11, memory_bytes_per_s=1e11, overlap=0.9)


@cache
def planner(name: str, mesh: str) -> Planner:
    _, known = captured(name)
    return Planner(known, name, pt.Mesh.parse(mesh), pt.Options(hardware=MACHINE))


@pytest.mark.parametrize(
    ("name", "mesh"),
    [("mlp", "dp=2"), ("gpt2", "dp=2"), ("gpt2", "dp=2,tp=2"), ("resnet", "dp=2,tp=2")],
)
def test_no_plan_takes_less(name: str, mesh: str) -> None:
    fold = with_sums_beside(planner(name, mesh).posed.fold, MACHINE)
    assert fold is not None
    bound_s = solve(fold.problem, 60.0, fold=fold).bound_s
    plans = [planner(name, mesh).search()]
    plans += [planner(name, mesh).random(seed) for seed in range(6)]
    assert any(plan.predicted.hidden_by_part for plan in plans)
    for plan in plans:
        assert plan.predicted.seconds >= bound_s * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_an_assignment_takes_its_price_at_least_and_at_most_the_sum(seed: int) -> None:
    made = planner("gpt2", "dp=2,tp=2")
    problem = made.posed.problem
    fold = with_sums_beside(made.posed.fold, MACHINE)
    assert fold is not None
    choices = draw_choices(random.Random(seed), made.posed)
    found = Found(choices, SearchResult("drawn", "drawn", None, 0.0))
    seconds = made.decide(found).predicted.seconds
    assert cost_of(fold.problem, choices) <= seconds * (1 + 1e-9)
    assert seconds <= cost_of(problem, choices) * (1 + 1e-9)


def test_what_the_program_uses_keeps_its_price() -> None:
    posed = planner("gpt2", "dp=2").posed
    problem, fold = posed.problem, with_sums_beside(posed.fold, MACHINE)
    assert fold is not None
    leaving = {
        (index, result)
        for index, node in enumerate(fold.problem.nodes)
        for result, type_ in enumerate(node.result_types)
        if isinstance(type_, Leaving)
    }
    assert leaving
    for node in problem.nodes:
        if len(node.operands) > 1:
            assert leaving.isdisjoint(node.operands)
    for node, light in zip(problem.nodes, fold.problem.nodes, strict=True):
        shapes = [t and (t.shape, t.dtype) for t in node.result_types]
        assert shapes == [t and (t.shape, t.dtype) for t in light.result_types]
        assert node.choices is light.choices


def test_without_overlap_there_is_no_other_problem() -> None:
    assert with_sums_beside(planner("mlp", "dp=2").posed.fold, machine()) is None
