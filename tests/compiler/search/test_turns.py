"""What passes beside computing makes steps faster, holds more, keeps to a limit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.models.turned import plain, turned

from partita.compiler.cost.memory import timeline
from partita.compiler.plan.turns import END, Half, turns_of
from partita.compiler.search.turns import with_turns
from partita.compiler.simulate.stage_items import stage_items
from partita.whole_plans.recount import recount, with_memory


@pytest.mark.parametrize("again", [False, True])
def test_a_step_is_faster_and_holds_more(again: bool) -> None:
    before, after = plain("zero3", again=again), turned("zero3", again=again)
    assert after.ahead
    assert after.late
    assert after.predicted.seconds < 0.97 * before.predicted.seconds
    assert after.predicted.hidden_by_part["communication dp"] > 0
    assert after.predicted.bytes > before.predicted.bytes


def test_gathers_of_two_places_are_under_way_at_most() -> None:
    turns = turns_of(turned("zero3"))
    place = ""  # the call that comes next
    places: dict[str, str] = {}
    for unit, half in reversed(turns):
        if isinstance(unit[0], str):
            place = unit[0]
        elif half is Half.SECOND:
            places[unit[0].key] = place
    under_way: set[str] = set()
    most = 0
    for unit, half in turns:
        if isinstance(unit[0], str) or unit[0].key not in turned("zero3").ahead:
            continue
        if half is Half.FIRST:
            under_way.add(unit[0].key)
        else:
            under_way.remove(unit[0].key)
        most = max(most, len({places[key] for key in under_way}))
    assert most == 2


def test_what_the_plan_states_is_what_its_decisions_take() -> None:
    plan = turned("zero3", again=True)
    assert not recount(plan).is_edited
    assert recount(replace(plan, ahead={}, late={})).is_edited
    items = stage_items(plan)
    apart_s = sum(item.seconds for item in items.microbatch)
    taken_s = apart_s - sum(items.hidden_s.values())
    update_s = plan.predicted.seconds_by_part["update"]
    assert plan.predicted.seconds == pytest.approx(taken_s + update_s)


def test_without_overlap_nothing_passes_beside() -> None:
    found = with_turns(plain("zero3", overlap=0.0))
    assert (found.ahead, found.late) == ({}, {})


def test_under_a_limit_less_passes_beside_and_the_plan_keeps_to_it() -> None:
    before, after = plain("zero3"), turned("zero3")
    low, high = before.predicted.bytes, after.predicted.bytes
    assert low < high
    numbers: list[int] = []
    for limit in (low, (low + high) // 2, high):
        options = replace(before.options, memory_bytes=limit)
        found = with_memory(with_turns(replace(before, options=options)))
        assert found.predicted.bytes <= limit
        assert found.predicted.seconds <= before.predicted.seconds
        numbers.append(len(found.ahead) + len(found.late))
    assert 0 < numbers[0] < numbers[-1] == len(after.ahead) + len(after.late)


def test_it_holds_what_a_message_was_given_until_it_is_waited_for() -> None:
    plan = turned("zero2")
    number = plan.order.index
    keys = [b for b in plan.boxings if plan.late.get(b.key, END) != END]
    boxing = max(keys, key=lambda b: sum(step.payload for step in b.lowering))
    place = plan.late[boxing.key]
    until = next(b.producer for b in plan.boxings if b.key == place)
    assert number(until) > number(boxing.producer) + 1
    spans: list[tuple[str, ...]] = []
    for step in (timeline(plain("zero2")), timeline(plan)):
        (held,) = [item for item in step.held if item.key == boxing.producer]
        spans.append(step.moments[held.first : held.last + 1])
    assert until not in spans[0]
    assert until in spans[1]
