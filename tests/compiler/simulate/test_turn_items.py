"""What is known of the items of one plan holds for its turns and buckets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.models.turned import plain, turned

from partita.compiler.plan.emitted import emitted_units
from partita.compiler.plan.turns import turns_of
from partita.compiler.search.buckets import Packing
from partita.compiler.simulate.stage_items import stage_items
from partita.compiler.simulate.turn_items import TurnItems


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_items_are_those_of_each_plan_by_itself(name: str) -> None:
    apart = plain(name)
    items = TurnItems(apart)
    others = [turned(name), apart, turned(name, bucket=2**14), turned(name)]
    for other in others:
        assert other.nodes == apart.nodes
        assert stage_items(other, items) == stage_items(other)
    assert {bool(other.buckets) for other in others} == {False, True}
    assert {bool(other.ahead or other.late) for other in others} == {False, True}


def test_units_and_turns_are_those_of_each_plan_by_itself() -> None:
    apart = plain("zero3")
    items = TurnItems(apart)
    for size in (2**12, 2**14, 2**20):
        other = replace(apart, buckets=Packing.of(apart).into(size))
        assert other.buckets
        assert items.units(other) == emitted_units(other)
        assert items.turns(other) == turns_of(other)
