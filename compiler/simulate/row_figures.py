"""What the simulation says of each row of ranks, in figures."""

from __future__ import annotations

from typing import Any

from partita.compiler.plan.document import Document
from partita.compiler.simulate.timetable import Timetable


def row_figures(document: Document, timetable: Timetable) -> list[dict[str, Any]]:
    """Return by row its ranks, stages, and its seconds and bytes in a step, as JSON."""
    rows = range(len(timetable.step.ends))
    return [_of_row(document, timetable, row) for row in rows]


def _of_row(document: Document, timetable: Timetable, row: int) -> dict[str, Any]:
    step, peak = timetable.step, timetable.peak(row)
    stages = [number for number, at in enumerate(step.schedule.rank_of) if at == row]
    return {
        "ranks": list(document.stages[stages[0]].ranks),
        "stages": stages,
        "compute_s": timetable.compute_s(row),
        "communication_s": timetable.communication_s(row),
        "waiting_s": max(0.0, step.seconds - step.busy_s[row]),
        "end_s": step.ends[row],
        "peak_bytes": peak.bytes,
        "peak_at_s": peak.time_s,
    }
