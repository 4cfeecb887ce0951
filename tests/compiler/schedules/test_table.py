"""Schedules as text: ours reads back, torch's own tables read as they are."""

from __future__ import annotations

import pytest
from torch.distributed.pipelining import schedules as torchs

from partita.compiler.errors import BadPlan
from partita.compiler.schedules.check import check_schedule
from partita.compiler.schedules.make import SCHEDULES, make_schedule
from partita.compiler.schedules.schedule import Action, Work
from partita.compiler.schedules.table import from_csv, to_csv
from partita.compiler.schedules.transfers import with_transfers


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_what_is_written_reads_back(name: str) -> None:
    made = make_schedule(name, 2, 4)
    found = from_csv(to_csv(made), made.rank_of, name)
    assert found.rows == made.rows
    assert found.num_microbatches == 4
    check_schedule(found)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_torch_reads_every_word(name: str) -> None:
    text = to_csv(with_transfers(make_schedule(name, 3, 3)))
    for line in text.splitlines():
        for cell in line.split(","):
            action = torchs._Action.from_str(cell)  # pyright: ignore[reportPrivateUsage]
            assert str(action) == cell


def test_idle_times_of_a_table_are_no_actions() -> None:
    found = from_csv("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n", (0, 1))
    assert found.rows[0] == tuple(map(Action.parse, ("0F0", "0F1", "0B0", "0B1")))
    check_schedule(found)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0X0\n", "'0X0' is no action; want a stage, one of F, B, I"),
        ("0F0,0B0\n1F0,1B0\n2F0,2B0\n", "the table has stage 2; there are 2"),
        ("\n", "no action on a microbatch"),
    ],
)
def test_text_that_is_no_schedule(text: str, message: str) -> None:
    with pytest.raises(BadPlan, match=message):
        from_csv(text, (0, 1))


def test_updates_end_a_step_and_are_not_written() -> None:
    made = with_transfers(make_schedule("1f1b", 1, 1))
    assert [action.work for action in made.rows[0]][-2:] == [Work.REDUCE, Work.UPDATE]
    assert to_csv(made) == "0F0,0B0,0REDUCE_GRAD\n"
