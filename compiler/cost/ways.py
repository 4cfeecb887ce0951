"""Where boxings between some placements of a tensor may pass, whatever the machine.

A boxing passes through shardings that are open to all, and through its own source's and
target's. What of that a source and a target bring is their *kind*: pairs of equal kinds
have one *universe*, a grid of placements. Those that few sources have ways in are most,
and are searched together (cost/grids.py), apart from those of many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from partita.compiler.cost.boxing import base_shardings
from partita.compiler.cost.grids import Bools, Floats, Grids, Ints
from partita.compiler.cost.moves import Moves
from partita.compiler.ir.layout import check_placement
from partita.compiler.ir.sbp import Placement, Sharding

_Universe = tuple[tuple[int, ...], ...]
"""Per axis, the numbers of the shardings that ways may visit, in order."""

_CELLS = 1 << 18  # of an array: more of them no longer lie in a processor's cache


class Ways:
    """The ways from placements that are made to those that are wanted of one tensor.

    Raises:
        BadPlacement: for a placement that is illegal for the type on the mesh.
    """

    def __init__(
        self, moves: Moves, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> None:
        placements = tuple(dict.fromkeys((*made, *wanted)))
        for placement in placements:
            check_placement(moves.type.shape, placement, moves.mesh)
        options, num_base = _options(moves, placements)
        sources, targets = _codes(options, made), _codes(options, wanted)
        universes, of_pair = _universes(num_base, sources, targets)
        every = _Universes(
            moves.kinds_between(options), universes, sources, targets, of_pair
        )
        self._shape = of_pair.shape
        self._grids = [every.grids(numbers) for numbers in every.together()]

    def seconds(self, of_kinds: Sequence[float]) -> Floats:
        """Return the seconds of the cheapest boxing from each placement to each.

        Args:
            of_kinds: seconds by the kind of a step.
        """
        return self._table(lambda own: own.seconds(of_kinds))

    def least_sum(self, of_kinds: Sequence[float], figures: Sequence[float]) -> Floats:
        """Return a figure of the steps of the cheapest boxings, added up.

        Args:
            of_kinds: seconds by the kind of a step.
            figures: the figure by the kind of a step. Of ways that take the same
                seconds that one counts that has least of it.
        """
        return self._table(lambda own: own.least_along(of_kinds, figures, np.add))

    def most_last(self, of_kinds: Sequence[float], figures: Sequence[float]) -> Floats:
        """Return a figure of the last step that has one of the cheapest boxings.

        Args:
            of_kinds: seconds by the kind of a step.
            figures: the figure by the kind of a step, none below zero; not a number
                where it has none. Of ways that take the same seconds that one counts
                whose last has most of it.
        """

        def last(before: Floats, own: Floats) -> Floats:
            return np.where(np.isnan(own), before, -own)

        return -self._table(lambda own: own.least_along(of_kinds, figures, last))

    def _table(self, figures: Callable[[Grids], Floats]) -> Floats:
        """Return what the grids come to, from each placement to each."""
        table = np.zeros(self._shape)
        for own in self._grids:
            table[own.pairs] = figures(own)
        return table


@lru_cache(maxsize=1 << 12)
def ways_between(
    moves: Moves, made: tuple[Placement, ...], wanted: tuple[Placement, ...]
) -> Ways:
    """Return the ways from placements that are made to those that are wanted."""
    return Ways(moves, made, wanted)


def _options(
    moves: Moves, placements: Sequence[Placement]
) -> tuple[tuple[tuple[Sharding, ...], ...], list[int]]:
    """Return per axis all shardings, and how many of them, the first, all may visit."""
    options: list[tuple[Sharding, ...]] = []
    num_base: list[int] = []
    for axis in range(moves.mesh.ndim):
        base = base_shardings(moves.type.shape, moves.mesh, axis)
        own = dict.fromkeys([p.shardings[axis] for p in placements])
        num_base.append(len(base))
        options.append(tuple(dict.fromkeys((*base, *own))))
    return tuple(options), num_base


def _codes(
    options: Sequence[Sequence[Sharding]], placements: Sequence[Placement]
) -> Ints:
    """Return the numbers of the shardings ``[placement, axis]``."""
    numbers = [{own: n for n, own in enumerate(each)} for each in options]
    codes = [
        [known[s] for known, s in zip(numbers, placement.shardings, strict=True)]
        for placement in placements
    ]
    return np.array(codes, dtype=np.int64).reshape(len(placements), len(options))


def _universes(
    num_base: Sequence[int], sources: Ints, targets: Ints
) -> tuple[list[_Universe], Ints]:
    """Return the universes, and the number of each source's and target's."""
    kinds = np.concatenate([sources, targets])
    kinds = np.where(kinds < np.array(num_base), -1, kinds)  # what they alone bring
    distinct, of_each = np.unique(kinds, axis=0, return_inverse=True)
    of_source, of_target = np.split(of_each.reshape(-1), [len(sources)])
    numbers: dict[_Universe, int] = {}
    number = np.zeros((len(distinct), len(distinct)), dtype=np.int64)
    for source in np.unique(of_source):
        for target in np.unique(of_target):
            ends = distinct[source].tolist(), distinct[target].tolist()
            universe = tuple(
                (*range(base), *sorted({code for code in own if code >= 0}))
                for base, *own in zip(num_base, *ends, strict=True)
            )
            number[source, target] = numbers.setdefault(universe, len(numbers))
    return [*numbers], number[of_source[:, None], of_target[None, :]]


@dataclass(frozen=True)
class _Universes:
    """All universes, and whose ways are in which.

    Attributes:
        kinds: per axis, those of its steps between all shardings.
        visited: by universe.
        sources: the numbers of the shardings ``[source, axis]``.
        targets: likewise.
        of_pair: the universe of each source and target.
    """

    kinds: Sequence[Ints]
    visited: Sequence[_Universe]
    sources: Ints
    targets: Ints
    of_pair: Ints

    @cached_property
    def _is_used(self) -> Bools:
        """Whether a universe ``[universe, source]`` holds ways from a source."""
        found = np.zeros((len(self.visited), len(self.sources)), dtype=np.bool_)
        found[self.of_pair, np.arange(len(self.sources))[:, None]] = True
        return found

    def together(self) -> Iterator[Ints]:
        """Yield the numbers of universes whose arrays are not too large together.

        Those of as many sources come next to each other.
        """
        if not self.visited:
            return
        widths = [max(map(len, own)) for own in zip(*self.visited, strict=True)]
        num_sources = self._is_used.sum(axis=1)
        cells = num_sources * int(np.prod(widths)) * max(widths)
        order = np.argsort(num_sources, kind="stable")
        begin = 0
        for end, own in enumerate(cells[order].tolist()):
            # All get room for as many sources as the last of them has.
            if own * (end - begin + 1) > _CELLS and end > begin:
                yield order[begin:end]
                begin = end
        yield order[begin:]

    def grids(self, numbers: Ints) -> Grids:
        """Return the universes of these numbers as arrays."""
        axes = range(self.sources.shape[1])
        own_number = np.full(len(self.visited), -1, dtype=np.int64)
        own_number[numbers] = np.arange(len(numbers))
        indices: list[Ints] = []  # per axis [universe, place]: the sharding there
        places: list[Ints] = []  # per axis [universe, sharding]: its place
        for axis in axes:
            num = self.kinds[axis].shape[axis]
            visited = [self.visited[number][axis] for number in numbers]
            width = max(map(len, visited))
            index = np.full((len(numbers), width), num, dtype=np.int64)
            place = np.full((len(numbers), num), -1, dtype=np.int64)
            for row, own in enumerate(visited):
                index[row, : len(own)] = own
                place[row, own] = range(len(own))
            indices.append(index)
            places.append(place)
        is_used = self._is_used[numbers]
        slots = is_used.cumsum(axis=1) - 1  # of the sources of each universe
        at, source = np.nonzero(is_used)
        row, column = np.nonzero(own_number[self.of_pair] >= 0)
        to = own_number[self.of_pair[row, column]]
        begins, ends = self.sources[source], self.targets[column]
        most = int(is_used.sum(axis=1).max())
        return Grids(
            shape=(*(index.shape[1] for index in indices), len(numbers), most),
            kinds=[
                _within(own, [*indices, indices[axis]])
                for axis, own in enumerate(self.kinds)
            ],
            starts=(
                *(places[axis][at, begins[:, axis]] for axis in axes),
                at,
                slots[at, source],
            ),
            ends=(
                *(places[axis][to, ends[:, axis]] for axis in axes),
                to,
                slots[to, row],
            ),
            pairs=(row, column),
        )


def _within(kinds: Ints, indices: Sequence[Ints]) -> Ints:
    """Return the kinds ``[*grid, new, universe]`` of the steps in each universe."""
    padded = np.pad(kinds, [(0, 1)] * kinds.ndim, constant_values=-1)
    spread: list[Ints] = []
    for position, index in enumerate(indices):
        shape = [1] * len(indices)
        shape[position] = index.shape[1]
        spread.append(index.T.reshape(*shape, len(index)))
    return padded[tuple(spread)]
