"""The formats that ``partita export`` knows: the one place that lists them."""

from __future__ import annotations

from partita.compiler.export import (
    deepspeed,
    dot,
    dtensor,
    graphml,
    megatron,
    model_explorer,
    perfetto,
    schedule,
    shardy,
    torchtitan,
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
    torchtitan.EXPORTER,
    megatron.EXPORTER,
    deepspeed.EXPORTER,
    python.EXPORTER,
    pt2.EXPORTER,
)
"""In the order in which help lists them."""
