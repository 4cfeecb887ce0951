"""The formats that ``partita export`` knows: the one place that lists them."""

from __future__ import annotations

from partita.compiler.export import (
    dot,
    dtensor,
    graphml,
    model_explorer,
    perfetto,
    schedule,
    shardy,
)
from partita.export import pt2, python

EXPORTERS = (
    dot.EXPORTER,
    graphml.EXPORTER,
    model_explorer.EXPORTER,
    perfetto.EXPORTER,
    schedule.EXPORTER,
    shardy.EXPORTER,
    dtensor.EXPORTER,
    python.EXPORTER,
    pt2.EXPORTER,
)
"""In the order in which help lists them."""
