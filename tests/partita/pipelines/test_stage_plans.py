"""Stages that compute the same are searched once, and planned alike."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

import pytest
from tests.models.pipelines import PIPELINES

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.errors import NoSolution
from partita.compiler.ir.again import again_key
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.units import format_bytes
from partita.compiler.search.arrangement import SINGLE
from partita.compiler.search.joint import JointOutcome, JointSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.stage_cost import StageCost, peak_bytes
from partita.compiler.search.wanted import ROUGH, Wanted
from partita.microbatched import in_microbatches
from partita.one_mesh.planner import Planner
from partita.pipelines.stage_plans import StagePlans
from partita.pipelines.stage_search import Room, StageSearch

PAIR = Mesh(dp=2)


def plans_of(name: str, **options: object) -> StagePlans:
    model, args, kwargs = PIPELINES[name]()
    asked = pt.Options(**options)  # type: ignore[arg-type]
    captured = in_microbatches(capture(model, args, kwargs), 2, asked.rules)
    planner = Planner(captured, type(model).__name__, SINGLE, asked)
    return StagePlans.of(planner, Clock.of(1000.0))


@lru_cache
def chain() -> StagePlans:
    return plans_of("chain")


def layers(plans: StagePlans) -> list[tuple[int, int]]:
    """Return the boundaries of each layer in the middle of the chain."""
    forward = plans.line.forward
    starts = [forward.index(f"layers.{n}/t/0") for n in range(2, 6)]
    return [*pairwise(starts)]


def test_stages_that_compute_the_same_are_alike() -> None:
    plans = chain()
    first, second, third = layers(plans)
    structure = plans.program(*first).structure
    assert plans.program(*second).structure == structure
    assert plans.program(*third).structure == structure
    longer = plans.program(first[0], second[1]).structure
    shifted = plans.program(first[0] + 1, first[1] + 1).structure
    assert len({structure, longer, shifted}) == 3


def test_a_stage_that_is_known_is_not_searched_again() -> None:
    plans = chain()
    first, second, _ = layers(plans)
    cost = plans.cost(*first, PAIR, None)
    assert cost is not None
    assert plans.cost(*second, PAIR, None) is cost
    assert plans.cost(*second, SINGLE, None) is not cost


def test_it_is_told_each_time_that_a_stage_may_be_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = plans_of("chain")
    (place, *_) = layers(plans)
    free = plans.cost(*place, PAIR, None)
    assert free is not None

    def nothing(*_: object) -> JointOutcome:
        return JointOutcome(None, 0.0)

    monkeypatch.setattr(JointSearch, "run", nothing)
    for _ in range(2):
        plans.is_shown = True
        assert plans.cost(*place, PAIR, None) is free
        assert plans.is_shown
        plans.cost(*place, PAIR, Room(free.bytes(1) - 1, 1))
        assert not plans.is_shown


def test_pinned_stages_are_told_apart_by_their_names() -> None:
    plans = plans_of("chain", pins={"layers.3.weight": "(S(0),)"})
    first, second, _ = layers(plans)
    assert plans.cost(*first, PAIR, None) is not plans.cost(*second, PAIR, None)


def test_what_was_decided_of_one_stage_holds_for_another() -> None:
    plans = chain()
    first, second, _ = layers(plans)
    one, other = (plans.program(*place).program for place in (first, second))
    planner = Planner(plans.captured, "Chain", PAIR, plans.planner.options)
    of_one = StageSearch.of(planner, one, None, Clock.of(1000.0))
    of_one.run()
    decided = of_one.search.decided
    found = StageSearch.of(planner, other, None, Clock.of(1000.0)).run()
    last = len(plans.line.forward)
    _, part, _ = plans.plan((*second, last), (PAIR,) * 3, (None,) * 3)
    plan = part.plan
    assert part.cost == StageCost.of(plan, other)
    assert StageCost.of(plan, other) == StageCost.of(found, other)
    assert plan.nodes.keys() == found.nodes.keys()
    assert any(node.alternatives for node in plan.nodes.values())
    assert decided.result.status == "optimal"


def test_stages_alike_are_written_down_once_whatever_room_they_have() -> None:
    plans = chain()
    first, second, _ = layers(plans)
    assert first[1] == second[0]
    ends = *first, second[1], len(plans.line.forward)
    rooms = [None, Room(1 << 40, 3), Room(1 << 40, 2), None]
    _, one, other, _ = plans.plan(ends, (PAIR,) * 4, rooms)
    assert other.plan.nodes.keys() != one.plan.nodes.keys()
    assert other.plan.predicted is one.plan.predicted


def test_what_is_made_again_goes_by_the_names_of_the_stage() -> None:
    plans = plans_of("tied", memory="1GiB")
    first = 6, 30
    free = plans.cost(*first, SINGLE, None)
    assert free is not None
    live = 4
    room = Room(free.bytes(live) - 1, live)
    cost = plans.cost(*first, SINGLE, room)
    assert cost is not None
    assert cost.bytes(live) <= room.limit_bytes
    last = len(plans.line.forward)
    _, part, _ = plans.plan((*first, last), (SINGLE,) * 3, (None, room, None))
    plan = part.plan
    assert plan.recompute
    assert peak_bytes(plan, live) == cost.bytes(live)
    made = {*plan.nodes, *(boxing.key for boxing in plan.boxings)}
    assert made >= {again_key(key) for key in plan.recompute}


def test_what_does_not_fit_has_no_cost() -> None:
    plans = chain()
    place = layers(plans)[0]
    for live in (1, 2):
        assert plans.cost(*place, SINGLE, Room(100, live)) is None
    assert plans.cost(*place, SINGLE, Room(0, 1)) is None
    assert len(plans.refusals) == 1
    last = len(plans.line.forward)
    with pytest.raises(NoSolution, match="the limit is 100 B on a rank"):
        plans.plan((last,), (SINGLE,), (Room(100, 1),))


@pytest.mark.parametrize(
    ("live", "who"),
    [(1, "one of the stages"), (2, "stages that holds 2 microbatches at once")],
)
def test_a_refusal_names_the_limit_that_was_asked_for(live: int, who: str) -> None:
    plans = chain()
    place = layers(plans)[0]
    free = plans.cost(*place, SINGLE, None)
    assert free is not None
    planner = Planner(plans.captured, "Chain", SINGLE, plans.planner.options)
    program = plans.program(*place).program
    room = Room(free.bytes(live) - 8, live)
    with pytest.raises(NoSolution) as refusal:
        StageSearch.of(planner, program, room, Clock.of(1000.0)).run()
    assert f"the limit is {format_bytes(room.limit_bytes)} " in str(refusal.value)
    assert f"{who} needs {format_bytes(free.bytes(live))}" in str(refusal.value)
    assert refusal.value.least_bytes == free.bytes(live)


def test_a_stage_that_is_too_slow_is_not_searched_within_a_limit() -> None:
    plans = plans_of("chain")
    place = layers(plans)[0]
    free = plans.cost(*place, SINGLE, None)
    assert free is not None
    room = Room(free.bytes(4) - 1, 4)
    free_s = free.busy_s(2)
    assert plans.cost(*place, SINGLE, room, Wanted(below_s=free_s)) is None
    assert not plans.refusals
    found = plans.cost(*place, SINGLE, room)
    if found is not None:
        assert found.busy_s(2) >= free_s
    else:
        assert plans.refusals


def test_what_was_found_roughly_stays_where_no_more_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search without time for more finds nothing that fits."""
    plans = plans_of("diamond")
    place, last = (0, len(plans.line.forward)), len(plans.line.forward)
    free = plans.cost(*place, PAIR, None)
    assert free is not None
    room = Room(free.bytes(1) - 1, 1)
    rough = plans.cost(*place, PAIR, room, ROUGH)
    assert rough is not None

    def refuse(_: object) -> None:
        raise NoSolution("no time for more")

    monkeypatch.setattr(StageSearch, "run", refuse)
    assert plans.is_shown
    assert plans.cost(*place, PAIR, room) is rough
    (planned,) = plans.plan((last,), (PAIR,), (room,))
    assert planned.cost is rough
    assert not plans.refusals
    assert not plans.is_shown, "there may be something faster"
