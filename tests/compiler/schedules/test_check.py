"""What is wrong with a schedule is named: rank, action, and what would be right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.compiler.errors import BadPlan
from partita.compiler.schedules.check import check_carried_out, check_schedule
from partita.compiler.schedules.make import make_schedule
from partita.compiler.schedules.schedule import Action, Schedule
from partita.compiler.schedules.transfers import with_transfers


def changed(made: Schedule, rank: int, old: str, new: str) -> Schedule:
    """Return the schedule with some words of a rank's row replaced."""
    text = " ".join(map(str, made.rows[rank]))
    assert old in text
    row = tuple(map(Action.parse, text.replace(old, new, 1).split()))
    rows = (*made.rows[:rank], row, *made.rows[rank + 1 :])
    return replace(made, rows=rows)


MADE = make_schedule("1f1b", 2, 3)
SENT = with_transfers(MADE)
CUT = make_schedule("zero-bubble", 2, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (changed(MADE, 0, "0F2", ""), "rank 0 has 0F2 0 times; want it once"),
        (changed(MADE, 1, "1B2", "1B1"), "rank 1 has 1B2 0 times|1B1 2 times"),
        (changed(MADE, 0, "0F2", "1F2"), "rank 0 has 1F2; that stage is on rank 1"),
        (changed(MADE, 0, "0F2", "5F2"), "rank 0 has 5F2; there are 2 stages"),
        (changed(MADE, 0, "0F2", "0F7"), "0F7; there are 3 microbatches"),
        (changed(MADE, 0, "0F2", "0F"), "reductions and updates are of all"),
        (changed(CUT, 0, "0W2", "0B2"), "has 0B2, but other backwards of the stage"),
        (changed(CUT, 0, "0W2", ""), "rank 0 has 0W2 0 times"),
        (
            changed(MADE, 0, "0F0 0F1 0B0", "0F1 0B0 0F0"),
            "rank 0 waits for ever: 0B0 needs 0F0, which rank 0 has behind 0B0",
        ),
        (
            changed(changed(MADE, 0, "0F1 0B0", "0B0 0F1"), 1, "1B0 1F1", "1F1 1B0"),
            "waits for ever: (0B0 needs 1B0|1F1 needs 0F1), which rank",
        ),
        (
            replace(MADE, most_live=(1, 1)),
            "stage 0 holds 2 microbatches at once; it claims 1",
        ),
        (
            changed(SENT, 0, "0SEND_F1", ""),
            "waits for ever: 1RECV_F1 needs 0SEND_F1, which rank 0 never does",
        ),
        (
            changed(SENT, 1, "1RECV_F1", ""),
            "rank 0 sends rank 1 what is for 1RECV_F1, where that one awaits 1RECV_F2",
        ),
        (
            changed(SENT, 0, "0RECV_B2", ""),
            "rank 1 sends rank 0 what is for 0RECV_B2, where that one awaits nothing",
        ),
        (
            replace(MADE, rows=(*MADE.rows, ())),
            "3 rows for stages on 2 ranks; want a row for each",
        ),
        (
            changed(changed(SENT, 0, "0REDUCE_GRAD", ""), 0, "0F0", "0REDUCE_GRAD 0F0"),
            "0REDUCE_GRAD needs 0B0, which rank 0 has behind 0REDUCE_GRAD",
        ),
        (
            changed(CUT, 0, "0W2", "0UPDATE 0W2"),
            "0UPDATE needs 0W2, which rank 0 has behind 0UPDATE",
        ),
    ],
)
def test_wrong_schedules_are_refused(wrong: Schedule, message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        check_schedule(wrong)


@pytest.mark.parametrize(
    ("rank", "works", "place"),
    [(0, ("SEND_B", "RECV_F"), "first"), (1, ("SEND_F", "RECV_B"), "last")],
)
def test_nothing_passes_the_ends_of_a_pipeline(
    rank: int, works: tuple[str, ...], place: str
) -> None:
    for work in works:
        action = f"{rank}{work}0"
        wrong = changed(SENT, rank, f"{rank}UPDATE", f"{action} {rank}UPDATE")
        message = f"rank {rank} has {action}; that stage is the {place}"
        with pytest.raises(BadPlan, match=message):
            check_schedule(wrong)


def test_right_ones_are_not() -> None:
    for made in (MADE, SENT, CUT, with_transfers(CUT)):
        check_schedule(made)
    for made in (SENT, with_transfers(CUT), make_schedule("gpipe", 1, 2)):
        check_carried_out(made)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (MADE, "rank 0 has 0B0, which uses what 1B0 makes on rank 1; want 0RECV_B0"),
        (CUT, "rank 0 has 0I0, which uses what 1I0 makes on rank 1; want 0RECV_B0"),
        (
            changed(SENT, 1, "1RECV_F0 1F0", "1F0 1RECV_F0"),
            "rank 1 has 1F0, which uses what 0F0 makes on rank 0; want 1RECV_F0",
        ),
        (
            replace(SENT, most_live=(99, 1)),
            "stage 0 claims to hold 99 microbatches at once; there are 3",
        ),
    ],
)
def test_ranks_run_by_what_says_all_of_it(wrong: Schedule, message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        check_carried_out(wrong)
