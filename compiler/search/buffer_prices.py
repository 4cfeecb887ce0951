"""Prices of boxings whose messages share a buffer with those of others.

A message has its part of the buffer's latency, on a machine that has so much less. What
is put together for a scatter, and parted after a gather, is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partita.compiler.cost.boxing_prices import BoxingTables, buffer_copies
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.model import Floats
from partita.compiler.search.problem import Problem, price_table
from partita.compiler.search.problem_prices import figures_of, priced_on


def in_buffers(problem: Problem, light: Hardware) -> Problem:
    """Return the problem with boxings as they are in buffers of a machine."""
    priced = priced_on(problem, light)
    copies = figures_of(problem, light, buffer_copies)
    return replace(priced, box_seconds=_InBuffers(priced, copies))


@dataclass(frozen=True)
class _InBuffers:
    problem: Problem
    copies: BoxingTables

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        seconds = self.problem.box_seconds(type, made, wanted)
        return seconds + self.copies(type, made, wanted)

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Floats:
        """Return the seconds from each placement to each."""
        table = price_table(self.problem, type, made, wanted)
        return table + self.copies.table(type, made, wanted)
