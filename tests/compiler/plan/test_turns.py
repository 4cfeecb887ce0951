"""Halves of messages stand where the plan says, everything else where it stood."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from tests.models.turned import plain, turned

from partita.compiler.errors import BadPlan
from partita.compiler.plan.check import check
from partita.compiler.plan.check_turns import check_turn_keys, check_turns
from partita.compiler.plan.document import Document
from partita.compiler.plan.emitted import emitted_units, key_of
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.turns import END, Half, numbered_turns, turns_of


def test_with_nothing_said_every_unit_has_one_turn() -> None:
    turns = turns_of(plain("zero3"))
    assert [turn.unit for turn in turns] == emitted_units(plain("zero3"))
    assert {turn.half for turn in turns} == {Half.BOTH}


@pytest.mark.parametrize(("kind", "bucket"), [("zero3", 0), ("zero2", 2**14)])
def test_what_is_said_comes_in_two_halves_the_first_before_the_second(
    kind: str, bucket: int
) -> None:
    plan = turned(kind, False, bucket)
    turns = turns_of(plan)
    halves = {
        half: [key_of(unit[0]) for unit, own in turns if own is half] for half in Half
    }
    assert len(halves[Half.FIRST]) == len(plan.ahead) + len(plan.late)
    assert sorted(halves[Half.FIRST]) == sorted(halves[Half.SECOND])
    first = {key_of(u[0]): i for i, (u, h) in enumerate(turns) if h is Half.FIRST}
    second = {key_of(u[0]): i for i, (u, h) in enumerate(turns) if h is Half.SECOND}
    assert all(first[key] < second[key] for key in first)
    units = {unit for unit, _ in turns}
    assert units == {*emitted_units(plan)}


def test_every_call_comes_behind_what_it_uses() -> None:
    plan = turned("zero3", again=True, bucket=2**14)
    done: set[str] = set()
    boxed = {(user, b.ref): b.key for b in plan.boxings for user in b.consumers}
    for unit, half in turns_of(plan):
        for item in unit:
            if isinstance(item, str):
                uses = [boxed.get((item, r), r.key) for r in plan.nodes[item].operands]
                calls = [k for k in uses if k in boxed.values() or not _enters(plan, k)]
                assert done.issuperset(calls)
        if half is not Half.FIRST:
            done.update(map(key_of, unit))


def _enters(plan: Document, key: str) -> bool:
    return plan.nodes[key].role is not None


def test_a_searched_plan_is_sound_and_comes_back_from_its_file() -> None:
    plan = turned("zero3", again=True)
    check(plan, "plan")
    again = Plan.from_dict(plan.to_dict())
    assert (again.ahead, again.late) == (plan.ahead, plan.late)


def changed(*, ahead: dict[str, str], late: dict[str, str]) -> Plan:
    return replace(turned("zero3"), ahead=ahead, late=late)


def last_gather() -> str:
    return [*turned("zero3").ahead][-1]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("nowhere", "wanted a call or a boxing"),
        ("the last", "is in the other one of forward and backward"),
        ("the loss", "comes behind it"),
    ],
)
def test_a_gather_that_cannot_start_there_is_refused(place: str, told: str) -> None:
    plan, key = turned("zero3"), last_gather()
    calls = [unit[0] for unit in emitted_units(plan) if isinstance(unit[0], str)]
    forward = [c for c in calls if plan.nodes[c].phase.value == "forward"]
    found = {"the last": calls[-1], "the loss": forward[-1]}.get(place, place)
    with pytest.raises(BadPlan, match=told):
        check_turns(changed(ahead={key: found}, late={}))


def test_what_the_program_needs_cannot_be_waited_for_late() -> None:
    with pytest.raises(BadPlan, match="want what only leaves the program"):
        check_turns(changed(ahead={}, late={last_gather(): END}))


def test_what_is_waited_for_before_it_starts_is_refused() -> None:
    plan = turned("zero3")
    key = [*plan.late][-1]
    calls = [unit[0] for unit in emitted_units(plan) if isinstance(unit[0], str)]
    backward = next(c for c in calls if plan.nodes[c].phase.value != "forward")
    with pytest.raises(BadPlan, match="does not come behind it"):
        check_turns(changed(ahead={}, late={key: backward}))


def test_one_of_a_bucket_that_is_not_its_first_is_refused() -> None:
    plan = turned("zero2", False, 2**14)
    first = next(key for keys in plan.buckets for key in keys if key in plan.late)
    other = next(keys for keys in plan.buckets if first in keys)[1]
    with pytest.raises(BadPlan, match="the first of its bucket"):
        check_turns(replace(plan, late={other: END}))


def test_what_is_no_boxing_is_refused() -> None:
    with pytest.raises(BadPlan, match="wanted the key of a boxing"):
        check_turn_keys(changed(ahead={}, late={"nothing": END}))


def test_explain_says_when_a_message_passes() -> None:
    plan = turned("zero3")
    key, place = next(iter(plan.ahead.items()))
    assert f"  ahead      it starts before {place}\n" in plan.explain(key)
    told = {place: plan.explain(key) for key, place in plan.late.items()}
    assert "  late       it is waited for behind all others\n" in told.pop(END)
    for place, text in told.items():
        assert f"  late       it is waited for before {place}\n" in text


def turns_one_by_one(
    num: int,
    at: Mapping[str, int],
    ahead: Mapping[str, str],
    late: Mapping[str, str],
    views: Mapping[int, Sequence[int]],
) -> Iterator[tuple[int, Half]]:
    """Yield the turns as ``Document`` tells of them, place by place."""
    starts = {at[key]: at[place] for key, place in ahead.items()}
    ends = {at[key]: num if place == END else at[place] for key, place in late.items()}
    moved = {view for own in views.values() for view in own}
    for place in range(num + 1):
        for unit in range(num):
            if ends.get(unit) == place:
                yield unit, Half.SECOND
                yield from ((view, Half.BOTH) for view in views.get(unit, ()))
        yield from ((u, Half.FIRST) for u in range(num) if starts.get(u) == place)
        if place in starts:
            yield place, Half.SECOND
        elif place in ends:
            yield place, Half.FIRST
        elif place < num and place not in moved:
            yield place, Half.BOTH


@pytest.mark.parametrize("seed", range(200))
def test_turns_are_those_of_every_place_in_turn(seed: int) -> None:
    draw = Random(seed)
    num = draw.randrange(2, 12)
    at = {f"unit {number}": number for number in range(num)}
    keys = draw.sample([*at], num)
    ahead: dict[str, str] = {}
    late: dict[str, str] = {}
    views: dict[int, list[int]] = {}
    for key in keys[: num // 2]:
        if at[key] and draw.random() < 0.5:
            ahead[key] = f"unit {draw.randrange(at[key])}"
        elif at[key] < num - 1:
            behind = draw.randrange(at[key] + 1, num + 1)
            late[key] = END if behind == num else f"unit {behind}"
            views[at[key]] = []
    for key in keys[num // 2 :]:
        before = [unit for unit in views if unit < at[key]]
        if before and draw.random() < 0.3:
            views[draw.choice(before)].append(at[key])
    told = num, at, ahead, late, views
    assert numbered_turns(*told) == [*turns_one_by_one(*told)]
