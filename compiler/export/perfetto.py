"""The predicted timeline of a step as a trace, for ui.perfetto.dev and Chrome."""

from __future__ import annotations

import json

from partita.compiler.export.exporter import Exporter
from partita.compiler.plan.document import Document
from partita.compiler.simulate.timetable import make_timetable
from partita.compiler.simulate.trace import write_trace


def write_perfetto(document: Document) -> str:
    """Return the trace of a plan's step, as compiler/simulate/trace.py writes it."""
    trace = write_trace(document, make_timetable(document))
    return json.dumps(trace, separators=(",", ":")) + "\n"


EXPORTER = Exporter(
    "perfetto",
    "the predicted timeline, for Perfetto and Chrome",
    ".json",
    write_perfetto,
)
