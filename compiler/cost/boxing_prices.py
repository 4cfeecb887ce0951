"""Prices of many boxings of one tensor at once: what the search asks for.

The same prices as ``cheapest_steps`` gives, seconds alone: shortest paths from all
sources of one kind together, relaxed one mesh axis at a time until nothing improves
(Bellman and Ford's algorithm, on arrays).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from partita.compiler.cost.boxing import base_shardings, cheapest_steps, edges_of
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.layout import check_placement
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement, Sharding
from partita.compiler.ir.tensor_type import TensorType

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_Kind = tuple[int, ...]
"""Per axis, the number of a sharding that only this placement brings; -1 for none."""

Table = list[list[float]]
"""Seconds, by the placement that is made and the one that is wanted."""

_Universe = tuple[tuple[int, ...], ...]
"""Per axis, the numbers of the shardings that ways may visit, in order."""


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

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        """Return the seconds of the cheapest boxing from ``made`` to ``wanted``."""
        row = self._rows.get(type, {}).get(made)
        column = self._columns.get(type, {}).get(wanted)
        if row is None or column is None:
            steps = cheapest_steps(type, made, wanted, self._mesh, self._hardware)
            return steps.seconds
        table = self._tables.get(type)
        if table is None:
            made_ones, wanted_ones = tuple(self._rows[type]), tuple(self._columns[type])
            key = type, made_ones, wanted_ones
            if key not in self._known:
                prices = boxing_prices(*key, self._mesh, self._hardware)
                self._known[key] = prices.tolist()
            table = self._tables[type] = self._known[key]
        return table[row][column]


def boxing_prices(
    type: TensorType,
    made: Sequence[Placement],
    wanted: Sequence[Placement],
    mesh: Mesh,
    hardware: Hardware,
) -> Floats:
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
    for placement in (*made, *wanted):
        check_placement(type.shape, placement, mesh)
    graph = _Graph(type, (*made, *wanted), mesh, hardware)
    sources, targets = graph.codes(made), graph.codes(wanted)
    prices = np.empty((len(made), len(wanted)))
    for universe, pairs in _by_universe(graph, sources, targets).items():
        rows = np.unique(np.concatenate([own for own, _ in pairs]))
        distances = graph.distances(sources[rows], universe)
        for own, columns in pairs:
            at = tuple(
                np.searchsorted(options, targets[columns, axis])
                for axis, options in enumerate(universe)
            )
            found = distances[(slice(None), *at)][np.searchsorted(rows, own)]
            prices[np.ix_(own, columns)] = found
    return prices


def _by_universe(
    graph: _Graph, sources: Ints, targets: Ints
) -> dict[_Universe, list[tuple[Ints, Ints]]]:
    """Group sources and targets by what their boxings may pass through."""
    found: dict[_Universe, list[tuple[Ints, Ints]]] = {}
    target_kinds = list(_by_kind(graph, targets))
    for source_kind, rows in _by_kind(graph, sources):
        for target_kind, columns in target_kinds:
            universe = graph.universe(source_kind, target_kind)
            found.setdefault(universe, []).append((rows, columns))
    return found


def _by_kind(graph: _Graph, codes: Ints) -> Iterator[tuple[_Kind, Ints]]:
    """Group placements by the shardings that are not open to every way."""
    kinds = np.where(graph.is_base(codes), -1, codes)
    distinct, group = np.unique(kinds, axis=0, return_inverse=True)
    for index, kind in enumerate(distinct):
        yield tuple(int(code) for code in kind), np.flatnonzero(group.ravel() == index)


class _Graph:
    """The placements of one tensor as a grid, and what a step on each axis takes."""

    def __init__(
        self,
        type: TensorType,
        placements: Sequence[Placement],
        mesh: Mesh,
        hardware: Hardware,
    ) -> None:
        self.options: list[list[Sharding]] = []
        self.num_base: list[int] = []
        for axis in range(mesh.ndim):
            base = list(base_shardings(type.shape, mesh, axis))
            own = dict.fromkeys(p.shardings[axis] for p in placements)
            self.num_base.append(len(base))
            self.options.append([*base, *(s for s in own if s not in base)])
        self.numbers = [
            {sharding: number for number, sharding in enumerate(options)}
            for options in self.options
        ]
        edges = edges_of(type, mesh, hardware)
        kinds = edges.moves.kinds_between(tuple(map(tuple, self.options)))
        seconds = np.array([*(price[0] for price in edges.prices), np.inf])
        self.steps = [seconds[own] for own in kinds]  # the last where there is none

    def codes(self, placements: Sequence[Placement]) -> Ints:
        """Return the numbers of the shardings ``[placement, axis]``."""
        return np.array(
            [
                [
                    numbers[s]
                    for numbers, s in zip(self.numbers, p.shardings, strict=True)
                ]
                for p in placements
            ],
            dtype=np.int64,
        )

    def is_base(self, codes: Ints) -> npt.NDArray[np.bool_]:
        """Whether a sharding may be visited on the way between any two."""
        return codes < np.array(self.num_base)

    def universe(self, source: _Kind, target: _Kind) -> _Universe:
        """Return, per axis, the numbers that a way between the kinds may visit."""
        return tuple(
            (*range(base), *sorted({number for number in own if number >= 0}))
            for base, *own in zip(self.num_base, source, target, strict=True)
        )

    def distances(self, sources: Ints, universe: _Universe) -> Floats:
        """Return the shortest distances ``[source, *grid]`` within a universe."""
        shape = tuple(len(options) for options in universe)
        found = np.full((len(sources), *shape), np.inf)
        start = [np.searchsorted(o, sources[:, a]) for a, o in enumerate(universe)]
        found[(np.arange(len(sources)), *start)] = 0.0
        steps = [
            self.steps[axis][np.ix_(*universe, options)]
            for axis, options in enumerate(universe)
        ]
        while True:
            before = found
            for axis, seconds in enumerate(steps):
                # [source, *grid, new]: the axis that changes becomes the last one
                moved = (found[..., None] + seconds).min(axis=1 + axis)
                found = np.minimum(found, np.moveaxis(moved, -1, 1 + axis))
            if np.array_equal(before, found):
                return found
