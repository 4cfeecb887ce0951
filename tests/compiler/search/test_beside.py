"""With messages at their least, the cheapest assignment bounds every plan."""

from __future__ import annotations

import random
from functools import cache
from math import inf

import pytest
from tests.compiler.search.hand_made import machine
from tests.models.captured import captured
from tests.models.searched import searched
from tests.slow import slow

import partita as pt
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.beside import MessagesBeside, Unawaited
from partita.compiler.search.decide import Found
from partita.compiler.search.draw import draw_choices
from partita.compiler.search.problem import cost_of
from partita.compiler.search.solver import solve
from partita.one_mesh.planner import Planner
from partita.whole_plans.light_messages import with_latency

MACHINE = machine(flops_per_s=1e11, memory_bytes_per_s=1e11, overlap=0.9)
TWO_LINKS = machine(
    flops_per_s=1e11, memory_bytes_per_s=1e11, overlap=0.5, fast={"tp": 2e8}
)


@cache
def planner(name: str, mesh: str, hardware: Hardware = MACHINE) -> Planner:
    _, known = captured(name)
    return Planner(known, name, pt.Mesh.parse(mesh), pt.Options(hardware=hardware))


@pytest.mark.parametrize("hardware", [MACHINE, TWO_LINKS], ids=["one", "two links"])
@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("mlp", "dp=2"),
        slow("gpt2", "dp=2"),
        ("gpt2", "dp=2,tp=2"),
        slow("resnet", "dp=2,tp=2"),
    ],
)
def test_no_plan_takes_less(name: str, mesh: str, hardware: Hardware) -> None:
    made = planner(name, mesh, hardware)
    sums = MessagesBeside.of(made.posed.fold, hardware)
    assert sums is not None
    bound_s = solve(sums.fold.problem, 60.0, fold=sums.fold).bound_s
    plans = [searched(made), *map(made.random, range(10, 16))]
    assert any(plan.predicted.hidden_by_part for plan in plans)
    for seconds in [plan.predicted.seconds for plan in plans]:
        least_s = sums.least_below(bound_s, seconds)
        assert 0 < least_s <= seconds * (1 + 1e-9)
    is_one_link = hardware is MACHINE or "tp" not in mesh
    assert is_one_link is (sums.least_below(bound_s, inf) == bound_s)


@pytest.mark.parametrize("hardware", [MACHINE, TWO_LINKS], ids=["one", "two links"])
@pytest.mark.parametrize("seed", range(4))
def test_an_assignment_takes_its_price_at_least_and_at_most_the_sum(
    seed: int, hardware: Hardware
) -> None:
    made = planner("gpt2", "dp=2,tp=2", hardware)
    problem = made.posed.problem
    sums = MessagesBeside.of(made.posed.fold, hardware)
    assert sums is not None
    choices = draw_choices(random.Random(seed), made.posed)
    found = Found(choices, SearchResult("drawn", "drawn", None, 0.0))
    seconds = made.decide(found).predicted.seconds
    price_s = cost_of(sums.fold.problem, choices)
    least_s = sums.least_below(price_s, seconds)
    assert least_s <= seconds * (1 + 1e-9)
    is_one_link = hardware is MACHINE
    assert is_one_link is (least_s == price_s)
    assert seconds <= cost_of(problem, choices) * (1 + 1e-9)


def test_what_the_program_uses_keeps_its_price() -> None:
    posed = planner("gpt2", "dp=2").posed
    problem, sums = posed.problem, MessagesBeside.of(posed.fold, MACHINE)
    assert sums is not None
    unawaited = {
        (index, result)
        for index, node in enumerate(sums.fold.problem.nodes)
        for result, type_ in enumerate(node.result_types)
        if isinstance(type_, Unawaited)
    }
    entering = {
        (index, 0) for index, node in enumerate(problem.nodes) if not node.operands
    }
    assert unawaited & entering
    assert unawaited - entering
    for node in problem.nodes:
        if len(node.operands) > 1:
            assert not (unawaited - entering) & {*node.operands}
    for node, light in zip(problem.nodes, sums.fold.problem.nodes, strict=True):
        shapes = [t and (t.shape, t.dtype) for t in node.result_types]
        assert shapes == [t and (t.shape, t.dtype) for t in light.result_types]
        assert node.choices is light.choices


def test_between_least_and_all_prices_grow() -> None:
    made = planner("gpt2", "dp=2")
    fold = made.posed.fold
    beside = MessagesBeside.of(fold, MACHINE)
    assert beside is not None
    folds = [beside.fold]
    for awaited in (0.0, 0.5, 1.0):
        together = MessagesBeside.together(fold, MACHINE, awaited)
        assert together is not None
        folds.append(together.fold)
    choices = draw_choices(random.Random(1), made.posed)
    prices = [cost_of(each.problem, choices) for each in folds]
    assert prices == sorted(set(prices))  # in buffers there are copies, too
    whole = made.posed.problem
    assert prices[-1] >= cost_of(whole, choices)


def test_without_overlap_there_is_no_other_problem() -> None:
    assert MessagesBeside.of(planner("mlp", "dp=2").posed.fold, machine()) is None


@pytest.mark.parametrize("overlap", [0.0, 0.9])
def test_together_only_what_leaves_or_starts_ahead_is_lighter(overlap: float) -> None:
    hardware = machine(overlap=overlap, alpha_s=1e-3)
    made = planner("gpt2", "dp=2", hardware)
    problem = made.posed.problem
    light = with_latency(hardware, 0.1)
    together = MessagesBeside.together(made.posed.fold, light, 1.0)
    assert together is not None
    lighter = together.fold.problem
    partial, whole = map(Placement.parse, ("P(sum)", "B"))
    seen: set[tuple[bool, bool]] = set()
    for node, other in zip(problem.nodes, lighter.nodes, strict=True):
        for one, two in zip(node.result_types, other.result_types, strict=True):
            if one is None or two is None:
                continue
            seconds = problem.box_seconds(one, partial, whole)
            less_s = lighter.box_seconds(two, partial, whole)
            is_light = isinstance(two, Unawaited)
            assert (less_s < 0.9 * seconds) is is_light, node.key
            seen.add((is_light, bool(node.operands)))
    assert seen == {(True, True), (bool(overlap), False), (False, True)}
