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


def rows(most_live: tuple[int, ...], microbatches: int) -> list[str]:
    found = limited_rows(most_live, microbatches)
    return [" ".join(map(str, row)) for row in found]


def test_room_for_all_is_1f1b() -> None:
    assert rows((2, 1), 3) == ["0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1B0 1F1 1B1 1F2 1B2"]


def test_a_backward_goes_before_a_forward() -> None:
    assert rows((2,), 3) == ["0F0 0B0 0F1 0B1 0F2 0B2"]


def test_a_microbatch_goes_along_a_long_chain_and_back() -> None:
    found = limited_rows((1,) * 2000, 1)
    assert [" ".join(map(str, row)) for row in found] == [
        f"{stage}F0 {stage}B0" for stage in range(2000)
    ]


def test_a_stage_does_one_thing_at_a_time() -> None:
    assert rows((3, 3, 1), 4)[:2] == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1F2 1B0 1B1 1F3 1B2 1B3",
    ]


def test_a_backward_takes_as_long_as_two_forwards() -> None:
    """While the second does 1F0 and 1B0 the first does three forwards more."""
    assert rows((6, 1), 5)[0] == "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0B2 0B3 0B4"
