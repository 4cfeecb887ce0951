"""Where boxings between some placements of a tensor may pass, whatever the machine.

A boxing passes through shardings that are open to all, and through its own source's and
target's. What of that a source and a target bring is their *kind*: pairs of equal kinds
have one *universe*, a grid of placements. All universes are searched at once, as arrays
with a place for each: those that a universe lacks are placed last, and no step leads
there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from partita.compiler.cost.boxing import base_shardings
from partita.compiler.cost.moves import Moves
from partita.compiler.ir.layout import check_placement
from partita.compiler.ir.sbp import Placement, Sharding

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_Universe = tuple[tuple[int, ...], ...]
"""Per axis, the numbers of the shardings that ways may visit, in order."""


class Ways:
    """The ways from placements that are made to those that are wanted of one tensor.

    Raises:
        BadPlacement: for a placement that is illegal for the type on the mesh.
    """

    def __init__(
        self, moves: Moves, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> None:
        axes = range(moves.mesh.ndim)
        placements = tuple(dict.fromkeys((*made, *wanted)))
        for placement in placements:
            check_placement(moves.type.shape, placement, moves.mesh)
        options, num_base = _options(moves, placements)
        sources, targets = _codes(options, made), _codes(options, wanted)
        universes, of_pair = _universes(num_base, sources, targets)
        indices: list[Ints] = []  # per axis [universe, place]: the sharding there
        places: list[Ints] = []  # per axis [universe, sharding]: its place
        for axis, own in enumerate(options):
            width = max(len(universe[axis]) for universe in universes)
            index = np.full((len(universes), width), len(own), dtype=np.int64)
            place = np.full((len(universes), len(own)), -1, dtype=np.int64)
            for number, universe in enumerate(universes):
                numbers = universe[axis]
                index[number, : len(numbers)] = numbers
                place[number, numbers] = range(len(numbers))
            indices.append(index)
            places.append(place)
        rows = np.arange(len(made))
        is_used = np.zeros((len(universes), len(made)), dtype=np.bool_)
        is_used[of_pair, rows[:, None]] = True
        slots = is_used.cumsum(axis=1) - 1  # of the sources of each universe
        used, row = np.nonzero(is_used)
        self._starts = (
            *(places[axis][used, sources[row, axis]] for axis in axes),
            used,
            slots[used, row],
        )
        self._ends = (
            *(places[axis][of_pair, targets[None, :, axis]] for axis in axes),
            of_pair,
            slots[of_pair, rows[:, None]],
        )
        most = int(is_used.sum(axis=1).max(initial=0))
        self._shape = *(i.shape[1] for i in indices), len(universes), most
        self._kinds = [
            _within(kinds, [*indices, indices[axis]])
            for axis, kinds in enumerate(moves.kinds_between(options))
        ]

    def seconds(self, of_kinds: Sequence[float]) -> Floats:
        """Return the seconds of the cheapest boxing from each placement to each.

        Args:
            of_kinds: seconds by the kind of a step.
        """
        return self._cheapest(self._by_step(of_kinds))[self._ends]

    def least_sum(self, of_kinds: Sequence[float], figures: Sequence[float]) -> Floats:
        """Return a figure of the steps of the cheapest boxings, added up.

        Args:
            of_kinds: seconds by the kind of a step.
            figures: the figure by the kind of a step. Of ways that take the same
                seconds that one counts that has least of it.
        """
        return self._least_along(of_kinds, figures, np.add)

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

        return -self._least_along(of_kinds, figures, last)

    def _by_step(self, of_kinds: Sequence[float]) -> list[Floats]:
        """Return per axis a figure ``[*grid, new, universe, 1]`` of its steps."""
        figures = np.array([*of_kinds, np.inf])  # the last where there is no step
        return [figures[kinds][..., None] for kinds in self._kinds]

    def _cheapest(self, steps: Sequence[Floats]) -> Floats:
        """Return the seconds to each place ``[*grid, universe, source]``.

        Shortest paths from all sources together, relaxed one mesh axis at a time until
        nothing improves (Bellman and Ford's algorithm, on arrays).
        """
        found = np.full(self._shape, np.inf)
        found[self._starts] = 0.0
        at = len(steps)  # of what a step leads to, behind the grid
        while True:
            before = found
            for axis, seconds in enumerate(steps):
                # [*grid, new, universe, source]: the axis that changes comes last
                longer = np.expand_dims(found, at) + seconds
                moved = np.moveaxis(longer.min(axis=axis), at - 1, axis)
                found = np.minimum(found, moved)
            if np.array_equal(before, found):
                return found

    def _least_along(
        self,
        of_kinds: Sequence[float],
        figures: Sequence[float],
        join: Callable[[Floats, Floats], Floats],
    ) -> Floats:
        """Return the least that cheapest ways come to, zero where there is none.

        ``join`` says what a way comes to with one more step, from both figures.
        """
        steps, owns = self._by_step(of_kinds), self._by_step(figures)
        seconds = self._cheapest(steps)
        at = len(steps)
        is_on_way: list[Bools] = []
        for axis, own in enumerate(steps):
            longer = np.expand_dims(seconds, at) + own
            after = np.expand_dims(np.moveaxis(seconds, axis, at - 1), axis)
            is_on_way.append((longer == after) & (longer < np.inf))
        found = np.full(self._shape, np.inf)
        found[self._starts] = 0.0
        while True:
            before = found
            for axis, (is_taken, own) in enumerate(zip(is_on_way, owns, strict=True)):
                joined = join(np.expand_dims(found, at), own)
                longer = np.where(is_taken, joined, np.inf)
                moved = np.moveaxis(longer.min(axis=axis), at - 1, axis)
                found = np.minimum(found, moved)
            if np.array_equal(before, found):
                ends = found[self._ends]
                return np.where(ends < np.inf, ends, 0.0)


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


def _within(kinds: Ints, indices: Sequence[Ints]) -> Ints:
    """Return the kinds ``[*grid, new, universe]`` of the steps in each universe."""
    padded = np.pad(kinds, [(0, 1)] * kinds.ndim, constant_values=-1)
    spread: list[Ints] = []
    for position, index in enumerate(indices):
        shape = [1] * len(indices)
        shape[position] = index.shape[1]
        spread.append(index.T.reshape(*shape, len(index)))
    return padded[tuple(spread)]
