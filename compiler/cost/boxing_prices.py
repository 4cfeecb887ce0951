"""Figures of many boxings of one tensor at once: what the search asks for.

The same prices as ``cheapest_steps`` gives, seconds alone; and what of them is a last
message's, or is copied for buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from math import nan

import numpy as np
import numpy.typing as npt

from partita.compiler.cost.boxing import edges_of
from partita.compiler.cost.collectives import axis_seconds
from partita.compiler.cost.moves import Kind
from partita.compiler.cost.step import StepKind, buffer_copied, payload_bytes
from partita.compiler.cost.ways import Ways, ways_between
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType

Table = npt.NDArray[np.float64]
"""Seconds, by the placement that is made and the one that is wanted."""


Placements = tuple[Placement, ...]

Figure = Callable[[TensorType, Placements, Placements, Mesh, Hardware], Table]
"""What makes a table of some figure of boxings."""


class BoxingTables:
    """A figure of all boxings that one search may ask for; a function of a pair.

    ``known`` are tables of it that other searches on this mesh and hardware asked for.
    """

    def __init__(
        self,
        mesh: Mesh,
        hardware: Hardware,
        known: dict[object, Table],
        figure: Figure,
    ) -> None:
        self._mesh = mesh
        self._hardware = hardware
        self._known = known
        self._figure = figure
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
        """Find the figure of all boxings of a type together, at the first question.

        They are those from the one set to the other.
        """
        self._rows[type] = {placement: i for i, placement in enumerate(made)}
        self._columns[type] = {placement: i for i, placement in enumerate(wanted)}
        self._tables.pop(type, None)
        self._lists.pop(type, None)

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        """Return the figure of the cheapest boxing from ``made`` to ``wanted``."""
        row = self._rows.get(type, {}).get(made)
        column = self._columns.get(type, {}).get(wanted)
        if row is None or column is None:
            return float(self._found(type, (made,), (wanted,))[0, 0])
        figures = self._lists.get(type)
        if figures is None:
            figures = self._lists[type] = self._table(type).tolist()
        return figures[row][column]

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Table:
        """Return the figure of the cheapest boxing from each placement to each."""
        rows, columns = self._rows.get(type, {}), self._columns.get(type, {})
        if not (all(p in rows for p in made) and all(p in columns for p in wanted)):
            return self._found(type, tuple(made), tuple(wanted))
        at, to = [rows[p] for p in made], [columns[p] for p in wanted]
        return self._table(type).take(at, axis=0).take(to, axis=1)

    def _table(self, type: TensorType) -> Table:
        table = self._tables.get(type)
        if table is None:
            ends = tuple(self._rows[type]), tuple(self._columns[type])
            table = self._tables[type] = self._found(type, *ends)
        return table

    def _found(
        self,
        type: TensorType,
        made: Placements,
        wanted: Placements,
    ) -> Table:
        key = type, made, wanted
        if key not in self._known:
            self._known[key] = self._figure(*key, self._mesh, self._hardware)
        return self._known[key]


@lru_cache(maxsize=1 << 9)
def boxing_prices(
    type: TensorType,
    made: Placements,
    wanted: Placements,
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
    ways, _, seconds = _ways(type, made, wanted, mesh, hardware)
    return ways.seconds(seconds)


def _ways(
    type: TensorType,
    made: Placements,
    wanted: Placements,
    mesh: Mesh,
    hardware: Hardware,
) -> tuple[Ways, Sequence[Kind], list[float]]:
    """Return the ways, the kinds of their steps, and what each of those takes."""
    edges = edges_of(type, mesh, hardware)
    ways = ways_between(edges.moves, made, wanted)
    return ways, edges.moves.kinds, [price[0] for price in edges.prices]


@lru_cache(maxsize=1 << 9)
def last_messages(
    type: TensorType,
    made: Placements,
    wanted: Placements,
    mesh: Mesh,
    hardware: Hardware,
) -> Table:
    """Return the seconds of the last message of the cheapest boxings.

    Zero where there is none; else as ``boxing_prices``. Of boxings that take the same
    seconds that one counts whose last message takes most of them.
    """
    ways, kinds, seconds = _ways(type, made, wanted, mesh, hardware)
    figures = [_message_s(kind, mesh, hardware) for kind in kinds]
    return ways.most_last(seconds, figures)


def _message_s(kind: Kind, mesh: Mesh, hardware: Hardware) -> float:
    collective = kind.step.collective
    if collective is None:
        return nan
    return axis_seconds(collective, kind.wire, mesh, kind.step.axis, hardware)


def buffer_copies(
    type: TensorType,
    made: Placements,
    wanted: Placements,
    mesh: Mesh,
    hardware: Hardware,
) -> Table:
    """Return the seconds of what the cheapest boxings copy into buffers and from them.

    As ``boxing_prices``. A buffer is larger than caches are. Of boxings that take the
    same seconds that one counts that copies least.
    """
    ways, kinds, seconds = _ways(type, made, wanted, mesh, hardware)
    figures = [_copied_s(type, kind, mesh, hardware) for kind in kinds]
    return ways.least_sum(seconds, figures)


def _copied_s(type: TensorType, kind: Kind, mesh: Mesh, hardware: Hardware) -> float:
    step, device = kind.step, hardware.device
    payload = payload_bytes(type, step, mesh)
    moved = buffer_copied(step.kind, payload, mesh.sizes[step.axis])
    launch_s = device.launch_s if step.kind is StepKind.ALL_GATHER else 0.0
    return launch_s + 2 * moved / device.memory_bytes_per_s
