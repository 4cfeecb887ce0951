"""What an action is, what it waits for, and what a stage holds meanwhile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.compiler.errors import BadPlan
from partita.compiler.schedules.make import make_schedule
from partita.compiler.schedules.schedule import Action, Schedule, Work, needs

NUMBERS = st.integers(0, 99)


@given(st.builds(Action, NUMBERS, st.sampled_from(Work), st.none() | NUMBERS))
def test_what_is_printed_reads_back(action: Action) -> None:
    assert Action.parse(str(action)) == action


@pytest.mark.parametrize("text", ["", "F0", "0", "0X0", "0F0 1F0", "0f0", "-1F0"])
def test_what_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(BadPlan, match="is no action; want a stage, one of F, B, I, W"):
        Action.parse(text)


def rows(*rows: str) -> Schedule:
    """Return a schedule of three stages on as many ranks, of four microbatches."""
    actions = tuple(tuple(map(Action.parse, row.split())) for row in rows)
    return Schedule("by hand", 4, (0, 1, 2), actions, (4, 4, 4))


WHOLE = rows("0F0 0B0", "1F0 1B0", "2F0 2B0")
LAST_CUT = rows("0F0 0B0", "1F0 1B0", "2F0 2I0 2W0")


@pytest.mark.parametrize(
    ("schedule", "action", "wanted"),
    [
        (WHOLE, "0F3", ""),
        (WHOLE, "2F3", "1F3"),
        (WHOLE, "1B3", "1F3 2B3"),
        (WHOLE, "2B3", "2F3"),
        (LAST_CUT, "1B3", "1F3 2I3"),
        (LAST_CUT, "0B3", "0F3 1B3"),
        (LAST_CUT, "2I3", "2F3"),
        (LAST_CUT, "2W3", "2I3"),
        (WHOLE, "0SEND_F3", ""),
        (WHOLE, "0REDUCE_GRAD", ""),
    ],
)
def test_compute_waits_for_what_its_neighbours_make(
    schedule: Schedule, action: str, wanted: str
) -> None:
    found = needs(schedule, Action.parse(action))
    assert " ".join(map(str, found)) == wanted


def test_the_stages_whose_backward_is_cut_are_known() -> None:
    assert WHOLE.cut == frozenset()
    assert LAST_CUT.cut == {2}


def test_what_is_saved_is_held_until_the_weights_have_their_gradient() -> None:
    made = rows("0F0 0F1 0B0 0F2 0B1 0B2", "1F0 1I0 1F1 1I1 1W0 1F2 1W1", "2F0 2B0 2F1")
    assert made.live() == (2, 2, 1)


@pytest.mark.parametrize(("name", "live"), [("gpipe", (4, 4, 4)), ("1f1b", (3, 2, 1))])
def test_schedules_hold_what_is_published(name: str, live: tuple[int, ...]) -> None:
    assert make_schedule(name, 3, 4).live() == live


def test_a_schedule_prints_a_row_per_rank() -> None:
    assert str(rows("0F0", "1F0 1F1")) == "rank 0: 0F0\nrank 1: 1F0 1F1"
