"""Schedules as tables of text: a line per rank, commas between actions.

That is how torch.distributed.pipelining reads and writes them (``_load_csv`` and
``_dump_csv`` of its schedules). It has no word for updates, which end a step anyway:
they are left out. An empty cell is a time at which a rank idles.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import StringIO

from partita.compiler.errors import BadPlan
from partita.compiler.schedules.schedule import Action, Schedule, Work


def to_csv(schedule: Schedule) -> str:
    """Return the schedule as text."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in schedule.rows:
        writer.writerow([str(a) for a in row if a.work is not Work.UPDATE])
    return text.getvalue()


def from_csv(text: str, rank_of: Sequence[int], name: str = "read") -> Schedule:
    """Read a schedule; it claims to hold what it holds.

    Args:
        text: as ``to_csv`` and torch write it.
        rank_of: by stage, its rank.
        name: of the schedule.

    Raises:
        BadPlan: for text that is no schedule of these stages.
    """
    rows = tuple(
        tuple(Action.parse(cell) for cell in line if cell.strip())
        for line in csv.reader(StringIO(text))
    )
    numbers = {a.microbatch for row in rows for a in row if a.microbatch is not None}
    if not numbers:
        raise BadPlan("schedule: the table has no action on a microbatch")
    unknown = {a.stage for row in rows for a in row} - set(range(len(rank_of)))
    if unknown:
        raise BadPlan(
            f"schedule: the table has stage {min(unknown)}; there are {len(rank_of)}"
        )
    made = Schedule(name, max(numbers) + 1, tuple(rank_of), rows, ())
    return Schedule(name, made.num_microbatches, made.rank_of, rows, made.live())
