"""Prices of boxings whose messages share a buffer with those of others.

A message has its part of the buffer's latency, on a machine that has so much less. What
is put together for a scatter, and parted after a gather, is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partita.compiler.cost.boxing_prices import BoxingTables, buffer_copies
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.fold import Fold
from partita.compiler.search.model import Floats
from partita.compiler.search.problem import PriceTables
from partita.compiler.search.problem_prices import figures_of, prices_on


def in_buffers(fold: Fold, light: Hardware) -> PriceTables:
    """Return the prices of a problem's boxings as they are in buffers of a machine."""
    copies = figures_of(fold, light, buffer_copies)
    return _InBuffers(prices_on(fold, light), copies)


@dataclass(frozen=True)
class _InBuffers:
    alone: PriceTables
    copies: BoxingTables

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        return self.alone(type, made, wanted) + self.copies(type, made, wanted)

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Floats:
        """Return the seconds from each placement to each."""
        table = self.alone.table(type, made, wanted)
        return table + self.copies.table(type, made, wanted)
