"""One of the three stages that a layout is priced by, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.fidelity.layout import Layout
from benchmarks.fidelity.system import as_run

import partita as pt
from partita.compiler.cost.memory import timeline
from partita.compiler.cost.timeline import Category
from partita.compiler.simulate.stage_items import StageItems


@dataclass(frozen=True)
class Part:
    """What a stage does and holds.

    Attributes:
        items: what it does.
        state_bytes: what it holds all the time.
        saved_bytes: what a microbatch leaves until its backward.
        more_bytes: the most that it holds besides.
        parameter_bytes: of the state, what parameters take.
    """

    items: StageItems
    state_bytes: int
    saved_bytes: int
    more_bytes: int
    parameter_bytes: int

    @classmethod
    def of(cls, plan: pt.Plan, layout: Layout) -> Part:
        """Return what a stage's plan says, as the layout's system carries it out."""
        held = timeline(plan)
        state = min(held.bytes_at)
        saved = held.saved_bytes
        more = held.peak_bytes - state - saved
        items = as_run(plan, layout.system, layout.not_kept)
        at_least = held.by_category(held.bytes_at.index(state))
        return cls(items, state, saved, more, at_least[Category.PARAMETERS])
