"""What calls and boxings make is found once, and is the same in all turns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest
from tests.models.turned import plain, turned

import partita as pt
from partita.compiler.cost.boxing_ways import Ways
from partita.compiler.cost.memory import StepMemory, timeline
from partita.compiler.cost.rank import Rank
from partita.compiler.plan.turns import turns_of
from partita.compiler.simulate.turn_items import TurnItems
from partita.whole_plans.recount import with_memory


def in_all_turns(kind: str) -> list[pt.Plan]:
    """Return a plan, and others that differ from it in turns and buckets alone."""
    some = turned(kind)
    early, late = (dict(list(all.items())[::2]) for all in (some.ahead, some.late))
    some = replace(some, ahead=early, late=late)
    return [plain(kind), turned(kind), turned(kind, bucket=2**16), some]


@pytest.mark.parametrize("kind", ["zero2", "zero3"])
def test_one_memory_serves_plans_in_all_turns_and_buckets(kind: str) -> None:
    plans = in_all_turns(kind)
    alone = [timeline(plan) for plan in plans]
    assert len({(step.moments, step.held) for step in alone}) == len(plans)
    for order in permutations(range(len(plans)), 2):
        memory = StepMemory(plans[order[0]])
        for at in order:
            assert memory.timeline(plans[at], turns_of(plans[at])) == alone[at]


def test_microbatches_too() -> None:
    """What they add up to lies otherwise than what each of them makes."""
    plans = [
        replace(plan, microbatches=2, late={}, buckets=())
        for plan in in_all_turns("zero3")
    ]
    assert len({len(plan.ahead) for plan in plans}) > 1
    memory = StepMemory(plans[0])
    for plan in (*plans, *plans):
        assert memory.timeline(plan, turns_of(plan)) == timeline(plan)


def test_what_a_call_makes_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    def counting(kind: type[Any], name: str) -> None:
        asks = vars(kind)[name]

        def ask(self: Any, *args: Any, **kwargs: Any) -> Any:
            asked[name] += 1
            return asks(self, *args, **kwargs)

        monkeypatch.setattr(kind, name, ask)

    counting(Rank, "made")
    counting(Ways, "of")
    first, *others = in_all_turns("zero3")[:2]
    memory = StepMemory(first)
    memory.timeline(first, turns_of(first))
    once = asked.copy()
    assert once["made"] == sum(node.role is None for node in first.nodes.values())
    assert once["of"] == len(first.boxings)
    for plan in (first, *others):
        memory.timeline(plan, turns_of(plan))
    assert asked == once


def test_a_plan_counts_in_the_memory_that_is_known_of_it() -> None:
    items = TurnItems(plain("zero3"))
    found = with_memory(turned("zero3"), items)
    assert found == with_memory(turned("zero3"))
    assert found.predicted.bytes > plain("zero3").predicted.bytes
