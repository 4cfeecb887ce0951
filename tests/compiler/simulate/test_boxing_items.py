"""A boxing's halves take what it takes whole: a message by itself, copies around it."""

from __future__ import annotations

import pytest
from tests.models.turned import MACHINE, turned

from partita.compiler.plan.document import Boxing
from partita.compiler.plan.emitted import emitted_units
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.turns import Half
from partita.compiler.simulate.boxing_items import boxing_items

HARDWARE = MACHINE(bytes_per_s=3e8, overlap=0.9)


def units(plan: Plan, keys: frozenset[str]) -> list[list[Boxing]]:
    found = [
        [item for item in unit if isinstance(item, Boxing)]
        for unit in emitted_units(plan)
    ]
    return [unit for unit in found if any(boxing.key in keys for boxing in unit)]


@pytest.mark.parametrize("bucket", [0, 2**14])
@pytest.mark.parametrize("which", ["ahead", "late"])
def test_the_halves_take_what_the_whole_takes(which: str, bucket: int) -> None:
    plan = turned("zero3", again=True, bucket=bucket)
    found = units(plan, frozenset(plan.ahead if which == "ahead" else plan.late))
    assert any(len(boxings) > 1 for boxings in found) is bool(bucket)
    for boxings in found:
        whole, first, second = (
            boxing_items(plan, boxings, HARDWARE, half)
            for half in (Half.BOTH, Half.FIRST, Half.SECOND)
        )
        each = [sum(item.seconds for item in own) for own in (whole, first, second)]
        assert each[0] == pytest.approx(each[1] + each[2])
        assert [item.is_beside for item in first] == [False] * (len(first) - 1) + [True]
        assert [item.is_behind for item in second] == [True] + [False] * len(second[1:])
        assert {item.key for item in (*first, *second)} == {boxings[0].key}
        sent = [sum(item.bytes for item in own) for own in (whole, first)]
        assert sent[0] == sent[1] > 0


def test_what_a_gather_brings_is_parted_behind_it() -> None:
    plan = turned("zero3", again=True, bucket=2**14)
    gathers = [b for b in units(plan, frozenset(plan.ahead)) if len(b) > 1]
    for boxings in gathers:
        (message,) = boxing_items(plan, boxings, HARDWARE, Half.FIRST)
        copies = boxing_items(plan, boxings, HARDWARE, Half.SECOND)
        assert message.axis == "dp"
        assert sum(item.seconds for item in copies) > 0
    scatters = [b for b in units(plan, frozenset(plan.late)) if len(b) > 1]
    for boxings in scatters:
        first = boxing_items(plan, boxings, HARDWARE, Half.FIRST)
        second = boxing_items(plan, boxings, HARDWARE, Half.SECOND)
        assert len(first) == 2
        assert sum(item.seconds for item in second) == 0
    assert gathers
    assert scatters
