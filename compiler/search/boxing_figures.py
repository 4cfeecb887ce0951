"""Figures of boxings beside their prices, each found once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.model import Floats

_Asked = tuple[TensorType, tuple[Placement, ...], tuple[Placement, ...]]


@dataclass(frozen=True)
class BoxingFigures:
    """Seconds of something that boxings do, by tensor, placement made and wanted.

    Attributes:
        of_one: returns them of one boxing.
        known: what was found.
    """

    of_one: Callable[[TensorType, Placement, Placement], float]
    known: dict[_Asked, Floats] = field(
        default_factory=dict[_Asked, Floats], compare=False, repr=False
    )

    def table(
        self,
        type: TensorType,
        made: Sequence[Placement],
        wanted: Sequence[Placement],
        prices: Floats,
    ) -> Floats:
        """Return the seconds [made, wanted], zero where there is no boxing to do.

        ``prices`` are those of the same boxings: zero where nothing is done, infinite
        where nothing can be.
        """
        key = type, tuple(made), tuple(wanted)
        if key not in self.known:
            found = np.zeros_like(prices)
            for row, column in np.argwhere((prices > 0.0) & (prices < inf)):
                found[row, column] = self.of_one(type, made[row], wanted[column])
            self.known[key] = found
        return self.known[key]
