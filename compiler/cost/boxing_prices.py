"""Prices of many boxings of one tensor at once: what the search asks for.

The same prices as ``cheapest_steps`` gives, seconds alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from partita.compiler.cost.boxing import cheapest_steps, edges_of
from partita.compiler.cost.ways import ways_between
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType

Table = npt.NDArray[np.float64]
"""Seconds, by the placement that is made and the one that is wanted."""


class BoxingPrices:
    """The prices of all boxings that one search may ask for; a function of a pair.

    ``known`` are tables that other searches on this mesh and hardware asked for.
    """

    def __init__(
        self, mesh: Mesh, hardware: Hardware, known: dict[object, Table]
    ) -> None:
        self._mesh = mesh
        self._hardware = hardware
        self._known = known
        self._rows: dict[TensorType, dict[Placement, int]] = {}
        self._columns: dict[TensorType, dict[Placement, int]] = {}
        self._tables: dict[TensorType, Table] = {}
        self._lists: dict[TensorType, list[list[float]]] = {}  # faster, one by one

    def expect(
        self,
        type: TensorType,
        made: Collection[Placement],
        wanted: Collection[Placement],
    ) -> None:
        """Price all boxings of tensors of ``type`` together, at the first question.

        They are those from the one set to the other.
        """
        self._rows[type] = {placement: i for i, placement in enumerate(made)}
        self._columns[type] = {placement: i for i, placement in enumerate(wanted)}
        self._tables.pop(type, None)
        self._lists.pop(type, None)

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        """Return the seconds of the cheapest boxing from ``made`` to ``wanted``."""
        row = self._rows.get(type, {}).get(made)
        column = self._columns.get(type, {}).get(wanted)
        if row is None or column is None:
            steps = cheapest_steps(type, made, wanted, self._mesh, self._hardware)
            return steps.seconds
        prices = self._lists.get(type)
        if prices is None:
            prices = self._lists[type] = self._table(type).tolist()
        return prices[row][column]

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Table:
        """Return the seconds of the cheapest boxing from each placement to each."""
        rows, columns = self._rows.get(type, {}), self._columns.get(type, {})
        if not (all(p in rows for p in made) and all(p in columns for p in wanted)):
            prices = [[self(type, one, other) for other in wanted] for one in made]
            return np.array(prices, dtype=np.float64)
        at, to = [rows[p] for p in made], [columns[p] for p in wanted]
        return self._table(type)[np.ix_(at, to)]

    def _table(self, type: TensorType) -> Table:
        table = self._tables.get(type)
        if table is None:
            key = type, tuple(self._rows[type]), tuple(self._columns[type])
            if key not in self._known:
                self._known[key] = boxing_prices(*key, self._mesh, self._hardware)
            table = self._tables[type] = self._known[key]
        return table


def boxing_prices(
    type: TensorType,
    made: Sequence[Placement],
    wanted: Sequence[Placement],
    mesh: Mesh,
    hardware: Hardware,
) -> Table:
    """Return the seconds of the cheapest boxing from each placement to each.

    Args:
        type: the logical type of the tensor.
        made: the sources, one per row.
        wanted: the targets, one per column.
        mesh: the ranks.
        hardware: what the steps are priced by.

    Raises:
        BadPlacement: for a placement that is illegal for the type on the mesh.
    """
    edges = edges_of(type, mesh, hardware)
    ways = ways_between(edges.moves, tuple(made), tuple(wanted))
    return ways.seconds([price[0] for price in edges.prices])
