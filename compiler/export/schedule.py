"""A pipeline's schedule as the table that torch.distributed.pipelining reads."""

from __future__ import annotations

from partita.compiler.errors import BadOptions
from partita.compiler.export.exporter import Exporter
from partita.compiler.plan.document import Document
from partita.compiler.plan.stages import read_schedule
from partita.compiler.schedules.table import to_csv


def write_schedule(document: Document) -> str:
    """Return the schedule as lines of actions, one for each rank of the pipeline.

    Raises:
        BadOptions: when the plan has one stage, and so no schedule.
    """
    if len(document.stages) == 1:
        raise BadOptions(
            "--to schedule: the plan has one stage, and so no schedule; want one of a "
            "mesh with an axis pp, e.g. --mesh pp=2,dp=2"
        )
    return to_csv(read_schedule(document))


EXPORTER = Exporter(
    "schedule",
    "the pipeline's schedule, for PyTorch's pipelining",
    ".csv",
    write_schedule,
)
