"""Stages that may hold few microbatches hold no more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partita.compiler.schedules.check import check_schedule
from partita.compiler.schedules.limited import limited_rows
from partita.compiler.schedules.schedule import Schedule


@given(
    most_live=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    microbatches=st.integers(1, 7),
)
def test_no_stage_holds_more_than_it_may(
    most_live: list[int], microbatches: int
) -> None:
    rows = limited_rows(most_live, microbatches)
    ranks = tuple(range(len(most_live)))
    check_schedule(Schedule("limited", microbatches, ranks, rows, tuple(most_live)))


def test_room_for_all_is_1f1b() -> None:
    rows = limited_rows((2, 1), 3)
    assert [" ".join(map(str, row)) for row in rows] == [
        "0F0 0F1 0B0 0F2 0B1 0B2",
        "1F0 1B0 1F1 1B1 1F2 1B2",
    ]
