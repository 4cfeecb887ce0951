from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch.distributed.pipelining import schedules

from partita.compiler.errors import BadOptions
from partita.compiler.export.schedule import write_schedule
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import read_schedule
from partita.compiler.schedules.schedule import Work
from partita.compiler.schedules.table import from_csv

# torch.distributed.pipelining.schedules, _action_regex of 2.13.
ACTION = re.compile(
    r"(\d+)(F|I|B|W|UNSHARD|RESHARD|REDUCE_GRAD|SEND_F|RECV_F|SEND_B|RECV_B)(\d*)"
)


def test_torch_reads_every_action(staged: Plan, tmp_path: Path) -> None:
    reads = vars(schedules)["_Action"].from_str
    text = write_schedule(staged)
    rows = [line.split(",") for line in text.splitlines()]
    assert len(rows) == 2
    for row in rows:
        for cell in row:
            assert ACTION.fullmatch(cell)
            assert str(reads(cell)) == cell


def test_it_reads_back_as_the_plans_schedule(staged: Plan) -> None:
    own = read_schedule(staged)
    read = from_csv(write_schedule(staged), own.rank_of)
    rows = [tuple(a for a in row if a.work is not Work.UPDATE) for row in own.rows]
    assert list(read.rows) == rows


def test_a_plan_of_one_stage_is_refused(small: Plan) -> None:
    with pytest.raises(BadOptions, match="the plan has one stage, and so no schedule"):
        write_schedule(small)
