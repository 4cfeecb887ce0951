"""A step of few items takes what that of every call does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.models.captured import captured
from tests.models.storage_pins import storage_pins
from tests.models.turned import MACHINE, plain, turned

import partita as pt
from partita.compiler.plan.document import Document
from partita.compiler.simulate.joined_calls import JoinedCalls
from partita.compiler.simulate.stage_items import stage_items
from partita.compiler.simulate.turn_items import TurnItems


def _hidden_s(document: Document) -> object:
    return pytest.approx(stage_items(document).hidden_s, rel=1e-9)


def _joined_hidden_s(document: Document) -> Mapping[str, float]:
    items = TurnItems(document)
    return JoinedCalls.of(document, items).hidden_s(document)


@pytest.mark.parametrize("bucket", [0, 2**14])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_a_step_takes_what_it_does_call_by_call(
    name: str, again: bool, bucket: int
) -> None:
    document = turned(name, again=again, bucket=bucket)
    items = TurnItems(document)
    joined = JoinedCalls.of(document, items)
    calls = sum(1 for node in document.nodes.values() if node.role is None)
    assert len(joined.runs.units) < calls
    found = joined.hidden_s(document)
    assert found == _hidden_s(document)
    if not bucket:
        before = plain(name, again=again)
        less = joined.hidden_s(before)
        assert less == _hidden_s(before)
        assert sum(less.values()) < sum(found.values())
        apart_s = sum(item.seconds for item in stage_items(before).microbatch)
        assert joined.apart_s == pytest.approx(apart_s)


def test_a_message_may_start_before_any_call() -> None:
    document = turned("zero3", again=True)
    calls = [key for key in document.order if document.nodes[key].role is None]
    key, before = [*document.ahead.items()][-1]
    number = calls.index(before)
    found: set[float] = set()
    for place in calls[number - 6 : number]:
        other = replace(document, ahead={**document.ahead, key: place})
        assert _joined_hidden_s(other) == _hidden_s(other)
        found |= set(_joined_hidden_s(other).values())
    assert len(found) > 1


def test_what_microbatches_make_is_added_up_where_it_is_made() -> None:
    (model, args, kwargs), _ = captured("gpt2")
    options = pt.Options(
        pins=storage_pins((model, args, kwargs), "zero3", 1),
        hardware=MACHINE(bytes_per_s=1e8, overlap=0.9),
        microbatches=2,
        recompute=("parameter:*",),
    )
    plan = pt.plan(model, *args, mesh="dp=2", options=options, **kwargs)
    assert plan.ahead
    assert _joined_hidden_s(plan) == _hidden_s(plan)
