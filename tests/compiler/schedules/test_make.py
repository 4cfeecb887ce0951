"""Schedules by name: complete, possible, within the memory that they claim."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.compiler.errors import BadOptions
from partita.compiler.schedules.check import check_schedule
from partita.compiler.schedules.make import SCHEDULES, make_schedule
from partita.compiler.schedules.schedule import Schedule
from partita.compiler.schedules.transfers import with_transfers


@settings(deadline=None, max_examples=60)
@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    ranks=st.integers(1, 6),
    microbatches=st.integers(1, 13),
    virtual=st.integers(1, 3),
)
def test_every_schedule_holds(
    name: str, ranks: int, microbatches: int, virtual: int
) -> None:
    if name == "interleaved":
        microbatches *= ranks
    else:
        virtual = 1
    made = make_schedule(name, ranks, microbatches, virtual)
    assert len(made.rows) == ranks
    assert made.num_stages == ranks * virtual
    check_schedule(made)
    check_schedule(with_transfers(made))


@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
@pytest.mark.parametrize("microbatches", [1, 3, 8])
def test_live_microbatches(ranks: int, microbatches: int) -> None:
    def live(name: str) -> tuple[int, ...]:
        made = make_schedule(name, ranks, microbatches)
        assert made.live() == made.most_live
        return made.live()

    assert live("gpipe") == (microbatches,) * ranks
    steps = range(ranks, 0, -1)
    assert live("1f1b") == tuple(min(step, microbatches) for step in steps)
    assert live("zero-bubble") == (min(ranks, microbatches),) * ranks
    halves = ((step + 1) // 2 for step in steps)
    assert live("frugal") == tuple(min(half, microbatches) for half in halves)


def test_interleaved_stages_go_round_the_ranks() -> None:
    made = make_schedule("interleaved", 2, 4, 2)
    assert made.rank_of == (0, 1, 0, 1)
    assert " ".join(map(str, made.rows[0])) == (
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3"
    )


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (("2f2b", 2, 4, 1), "schedule '2f2b' is not one of 1f1b, frugal, gpipe, inter"),
        (("gpipe", 2, 0, 1), "2 ranks, 0 microbatches, 1 stages on a rank; want at le"),
        (("interleaved", 4, 6, 2), "6 microbatches are no multiple of 4 ranks"),
        (("1f1b", 4, 6, 2), "has one stage on a rank, not 2; interleaved has several"),
    ],
)
def test_figures_that_cannot_be(
    figures: tuple[str, int, int, int], message: str
) -> None:
    with pytest.raises(BadOptions, match=message):
        make_schedule(*figures)


def torch_rows(made: Schedule) -> list[list[str]]:
    return [[str(action) for action in row] for row in made.rows]


def test_one_stage_is_its_own_pipeline() -> None:
    assert torch_rows(make_schedule("1f1b", 1, 2)) == [["0F0", "0B0", "0F1", "0B1"]]
    assert torch_rows(make_schedule("zero-bubble", 1, 1)) == [["0F0", "0I0", "0W0"]]
