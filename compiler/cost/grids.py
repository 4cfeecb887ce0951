"""The cheapest ways in several grids of placements at once, as arrays.

Each grid has a place for all of its placements, and sources that ways begin at. Arrays
have room for the largest grid and for the most sources: places that a grid lacks are
last, and no step leads there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Indices = tuple[Ints, ...]


@dataclass(frozen=True)
class Grids:
    """Several grids, and of which pairs of placements they hold the ways.

    Attributes:
        shape: of the arrays, ``[*grid, number, source]``.
        kinds: per axis the kinds ``[*grid, new, number]`` of its steps; -1 for none.
        starts: in an array, where each source is.
        ends: in an array, by pair, where its way ends.
        pairs: the rows and columns of these pairs in a table of all.
    """

    shape: tuple[int, ...]
    kinds: Sequence[Ints]
    starts: Indices
    ends: Indices
    pairs: Indices

    def seconds(self, of_kinds: Sequence[float]) -> Floats:
        """Return by pair the seconds of the cheapest way.

        Args:
            of_kinds: seconds by the kind of a step.
        """
        return self._cheapest(self._by_step(of_kinds))[self.ends]

    def least_along(
        self,
        of_kinds: Sequence[float],
        figures: Sequence[float],
        join: Callable[[Floats, Floats], Floats],
    ) -> Floats:
        """Return by pair the least that cheapest ways come to, zero for none.

        Args:
            of_kinds: seconds by the kind of a step.
            figures: a figure by the kind of a step.
            join: what a way comes to with one more step, from both figures.
        """
        steps, owns = self._by_step(of_kinds), self._by_step(figures)
        seconds = self._cheapest(steps)
        at = len(steps)
        is_on_way: list[Bools] = []
        for axis, own in enumerate(steps):
            longer = np.expand_dims(seconds, at) + own
            after = np.expand_dims(np.moveaxis(seconds, axis, at - 1), axis)
            is_on_way.append((longer == after) & (longer < np.inf))
        found = self._begun()
        while True:
            before = found
            for axis, (is_taken, own) in enumerate(zip(is_on_way, owns, strict=True)):
                joined = join(np.expand_dims(found, at), own)
                longer = np.where(is_taken, joined, np.inf)
                moved = np.moveaxis(longer.min(axis=axis), at - 1, axis)
                found = np.minimum(found, moved)
            if np.array_equal(before, found):
                ends = found[self.ends]
                return np.where(ends < np.inf, ends, 0.0)

    def _by_step(self, of_kinds: Sequence[float]) -> list[Floats]:
        """Return per axis a figure ``[*grid, new, number, 1]`` of its steps."""
        figures = np.array([*of_kinds, np.inf])  # the last where there is no step
        return [figures[kinds][..., None] for kinds in self.kinds]

    def _begun(self) -> Floats:
        found = np.full(self.shape, np.inf)
        found[self.starts] = 0.0
        return found

    def _cheapest(self, steps: Sequence[Floats]) -> Floats:
        """Return the seconds to each place ``[*grid, number, source]``.

        Shortest paths from all sources together, relaxed one mesh axis at a time until
        nothing improves (Bellman and Ford's algorithm, on arrays).
        """
        found = self._begun()
        at = len(steps)  # of what a step leads to, behind the grid
        while True:
            before = found
            for axis, seconds in enumerate(steps):
                # [*grid, new, number, source]: the axis that changes comes last
                longer = np.expand_dims(found, at) + seconds
                moved = np.moveaxis(longer.min(axis=axis), at - 1, axis)
                found = np.minimum(found, moved)
            if np.array_equal(before, found):
                return found
