"""What leaves by views is boxed once, on the cheaper side of them."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from tests.compiler.search.hand_made import machine
from tests.compiler.search.handing_on import boxed_behind
from tests.compiler.search.random_problems import TYPES, choice, node, problem
from tests.models import zoo
from tests.models.captured import captured

import partita as pt
from partita.compiler.cost.boxing_prices import BoxingTables, boxing_prices
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.beside import MessagesBeside
from partita.compiler.search.build import build_model
from partita.compiler.search.decide import Found
from partita.compiler.search.draw import draw_choices
from partita.compiler.search.fold import Fold
from partita.compiler.search.leaving import boxed_once, leaving, settled
from partita.compiler.search.problem import Problem, cost_of
from partita.compiler.search.solver import solve
from partita.one_mesh.planner import Planner

TURNED = choice("S(0)", "S(1)", 0.0), choice("S(1)", "S(0)", 0.0)
VIEW = (*TURNED, choice("B", "B", 0.0), choice("P(sum)", "P(sum)", 0.0))


def chain(*last: str, box: dict[tuple[str, str], float], views: int = 1) -> Problem:
    """Return a sum that leaves by views in one of the last placements."""
    nodes = [node("x", (), choice("", "P(sum)", 1.0))]
    nodes += [node(f"view {at}", ((at, 0),), *VIEW) for at in range(views)]
    outputs = tuple(choice(placement, "", 0.0) for placement in last)
    out = node("out", ((views, 0),), choice("B", "B", 0.0))
    nodes.append(replace(out, choices=outputs, result_types=()))
    priced = {tuple(map(Placement.parse, pair)): s for pair, s in box.items()}

    def price(_: TensorType, made: Placement, wanted: Placement) -> float:
        return priced.get((made, wanted), 9.0)

    return replace(problem(*nodes), box_seconds=price)


@pytest.mark.parametrize("views", [1, 2, 3])
@pytest.mark.parametrize("row_s", [0.25, 0.5, 1.0])
def test_it_is_boxed_on_the_cheaper_side(row_s: float, views: int) -> None:
    posed = chain(
        "S(1)",
        box={("P(sum)", "S(0)"): row_s, ("P(sum)", "S(1)"): 0.5},
        views=views,
    )
    fold = boxed_once(Fold.none(posed))
    assert len(fold.handed) == views
    found = solve(posed, 10.0, fold)
    assert found.seconds == found.bound_s == 1.0 + min(row_s, 0.5)
    assert found.status == "optimal"


def test_views_that_others_want_are_not_handed_on() -> None:
    posed = chain("B", box={})
    used = node("y", ((1, 0),), choice("B", "B", 1.0))
    other = replace(posed, nodes=(*posed.nodes, used))
    assert boxed_once(Fold.none(posed)).handed.keys() == {1}
    assert leaving(Fold.none(posed)) == {(0, 0), (1, 0)}
    assert not boxed_once(Fold.none(other)).handed
    assert leaving(Fold.none(other)) == set()


def test_a_view_that_cannot_take_what_is_made_is_not_handed_on() -> None:
    posed = chain("B", box={})
    x, view, out = posed.nodes
    for choices in (TURNED, (*VIEW[:3], choice("P(sum)", "B", 0.0))):
        nodes = x, replace(view, choices=choices), out
        other = replace(posed, nodes=nodes)
        assert not boxed_once(Fold.none(other)).handed


def test_an_output_may_want_what_no_view_makes() -> None:
    posed = chain("S(2)", box={})
    priced = BoxingTables(posed.mesh, machine(), {}, boxing_prices)
    posed = replace(posed, box_seconds=priced)
    fold = boxed_once(Fold.none(posed))
    assert fold.handed
    found = solve(posed, 10.0, fold)
    ways = [("P(sum)", "S(2)"), ("S(0)", "S(2)"), ("P(sum)", "S(1)")]
    sum_s, split_s, first_s = (
        priced(TYPES[0], *map(Placement.parse, way)) for way in ways
    )
    assert found.seconds == 1.0 + min(sum_s, first_s + split_s)


def test_what_is_settled_stays() -> None:
    box = {("P(sum)", "S(0)"): 0.25, ("P(sum)", "S(1)"): 0.5}
    fold = boxed_once(Fold.none(chain("S(1)", box=box)))
    once = settled(fold, [0, 3, 0])
    assert once == [0, 0, 0]
    assert settled(fold, once) == once


@pytest.mark.parametrize("seed", range(6))
def test_an_assignment_costs_what_it_does_once_it_is_settled(seed: int) -> None:
    _, known = captured("gpt2")
    hardware = machine(overlap=0.9)
    options = pt.Options(hardware=hardware)
    made = Planner(known, "gpt2", pt.Mesh(dp=2, tp=2), options)
    beside = MessagesBeside.of(made.posed.fold, hardware)
    assert beside is not None
    fold = replace(beside.fold, class_of=tuple(range(len(beside.fold.class_of))))
    fold = boxed_once(fold)
    model = build_model(fold)
    choices = boxed_behind(fold, draw_choices(random.Random(seed), made.posed))
    costs = [cost_of(fold.problem, own) for own in (settled(fold, choices), choices)]
    price = model.cost_of({v: choices[v % len(choices)] for v in model.costs})
    assert price == pytest.approx(costs[0], rel=1e-12)
    assert costs[0] <= costs[1] * (1 + 1e-12)


def test_no_message_of_a_gradient_is_waited_for() -> None:
    built, known = captured("gpt2")
    hardware = machine(flops_per_s=1e11, memory_bytes_per_s=1e11, overlap=0.9)
    pins = zoo.data_parallel_pins(built, 2)
    options = pt.Options(hardware=hardware, pins=pins)
    made = Planner(known, "gpt2", pt.Mesh(dp=2, tp=2), options)
    beside = MessagesBeside.of(made.posed.fold, hardware)
    assert beside is not None
    found = solve(beside.fold.problem, 60.0, beside.fold)
    plan = made.draft(Found(found.choices, SearchResult("", "", None, 0.0)))
    outputs = {o.value.key for o in plan.outputs if o.value is not None}
    left = {
        node.operands[0].key: key
        for key, node in plan.nodes.items()
        if key in outputs and len(node.operands) == 1 and not node.seconds
    }
    boxed = {boxing.producer for boxing in plan.boxings}
    assert left.keys() & boxed or set(left.values()) & boxed
    assert not [key for key, view in left.items() if {key, view} <= boxed]
