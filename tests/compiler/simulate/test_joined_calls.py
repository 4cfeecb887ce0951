"""A step of few items takes what that of every call does."""

from __future__ import annotations

import pytest
from tests.models.turned import plain, turned

from partita.compiler.plan.document import Document
from partita.compiler.plan.emitted import is_forward
from partita.compiler.simulate.joined_calls import JoinedCalls
from partita.compiler.simulate.stage_items import stage_items
from partita.compiler.simulate.turn_items import TurnItems


def _hidden_s(document: Document) -> float:
    return sum(stage_items(document).hidden_s.values())


@pytest.mark.parametrize("bucket", [0, 2**14])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_a_step_takes_what_it_does_call_by_call(
    name: str, again: bool, bucket: int
) -> None:
    document = turned(name, again=again, bucket=bucket)
    items = TurnItems(document)
    units = items.units(document)
    forward = [is_forward(document, unit) for unit in units]
    joined = JoinedCalls.of(document, units, forward, items)
    calls = sum(1 for node in document.nodes.values() if node.role is None)
    assert len(joined.units) < calls
    assert joined.hidden_s(document) == pytest.approx(_hidden_s(document), rel=1e-9)
    if not bucket:
        before = plain(name, again=again)
        found = joined.hidden_s(before)
        assert found == pytest.approx(_hidden_s(before), rel=1e-9)
        assert found < joined.hidden_s(document)
        apart_s = sum(item.seconds for item in stage_items(before).microbatch)
        assert joined.apart_s == pytest.approx(apart_s)
