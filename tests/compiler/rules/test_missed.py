"""Signatures that hold and that no row offers: added, or argued in argued_misses.py."""

import pytest
from tests.compiler.rules.argued_misses import ARGUED, NOT_SEARCHED, is_argued
from tests.compiler.rules.op_database import harvested
from tests.compiler.rules.rule_samples import samples

from partita.compiler.rules.table import ROWS, default_rules
from partita.testing.missed import find_all_missed

NUM_PARTS = 6


def test_reasons_are_given_for_ops_of_the_table() -> None:
    for argued in ARGUED:
        for op in argued.ops.split():
            name = op if op.startswith("partita.") else f"aten.{op}"
            assert default_rules.get(name) is not None, name


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_signatures_that_no_row_offers_are_argued(part: int) -> None:
    by_hand, found = samples(), harvested().samples
    rows = [r for r in ROWS if r.op not in NOT_SEARCHED][part::NUM_PARTS]
    calls = {r.op: [*found.get(r.op, ()), *by_hand.get(r.op, ())] for r in rows}

    missed = find_all_missed(rows, calls)

    unexplained = [
        str(miss)
        for misses in missed.values()
        for miss in misses
        if not is_argued(miss.op, str(miss.signature))
    ]
    assert unexplained == []
