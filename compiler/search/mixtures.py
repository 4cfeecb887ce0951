"""Assignments that are one in a stretch of a model and another one outside of it.

Where a fast assignment holds too much and a lean one is slow, the fastest that fits is
often the fast one for some of a model's equal blocks and the lean one for the others.
Where two meet something may be boxed, so they meet twice at the most: anywhere along
the forward's calls, with whose choices those of their backward go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from partita.compiler.search.cut_line import Line
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import cost_of
from partita.compiler.search.within_limit import Limited

_NEAR = 12  # places on each side of where as much of the faster fits as can
_SHARE = 0.5  # of the time, for the leaner within the faster

Counted = Callable[[tuple[int, ...]], Limited]
"""Counts what an assignment takes and holds under the limit."""


@dataclass
class _Tries:
    """Counts mixtures as long as there is time, and knows the best so far."""

    counted: Counted
    clock: Clock
    best: Limited

    @property
    def is_over(self) -> bool:
        return self.clock.left_s <= 0

    def take(self, choices: tuple[int, ...]) -> Limited:
        """Count one, and return it."""
        found = self.counted(choices)
        self.best = self.best.better(found)
        return found


@dataclass(frozen=True)
class Mixtures:
    """Mixtures of two assignments of one problem."""

    posed: Posed

    def best(
        self, fast: Limited, lean: Limited, counted: Counted, clock: Clock
    ) -> Limited:
        """Return the fastest mixture found that fits, or ``lean``, which does.

        What was found is mixed with the faster once more, until nothing is gained.
        Nothing is mixed with what fits or is no faster.
        """
        best, gained = lean, True
        while gained and not fast.fits and fast.seconds < best.seconds:
            last = best
            half = Clock.of(_SHARE * clock.left_s)
            best = self._within(fast, last, _Tries(counted, half, best))
            best = self._within(last, fast, _Tries(counted, clock, best))
            gained = best.seconds < last.seconds
        return best

    def _within(self, outside: Limited, inside: Limited, tries: _Tries) -> Limited:
        """Return the best of all stretches that are tried of one within the other."""
        unlike = self._unlike(outside.choices, inside.choices)
        for start in self._starts(unlike):
            if tries.is_over:
                break
            ends = [start - 1, *sorted(end for end in unlike if end >= start)]
            self._try_ends(start, ends, outside, inside, tries)
        return tries.best

    def _try_ends(
        self,
        start: int,
        ends: Sequence[int],
        outside: Limited,
        inside: Limited,
        tries: _Tries,
    ) -> None:
        """Try stretches from a start.

        About as much of the faster as fits is found by halving, then the cheapest
        places to end near there.
        """

        def mixed(end: int) -> tuple[int, ...]:
            whole = zip(self._places, outside.choices, inside.choices, strict=True)
            return tuple(b if start <= place <= end else a for place, a, b in whole)

        low, high = 0, len(ends) - 1
        while high - low > 1 and not tries.is_over:
            middle = (low + high) // 2
            fits = tries.take(mixed(ends[middle])).fits
            low, high = (middle, high) if fits == outside.fits else (low, middle)
        near = [mixed(end) for end in ends[max(low - _NEAR, 0) : high + _NEAR]]
        seconds = {one: cost_of(self.posed.problem, one) for one in near}
        for one in sorted(near, key=seconds.__getitem__):
            if tries.is_over or seconds[one] >= tries.best.seconds:
                break
            tries.take(one)

    def _starts(self, unlike: Set[int]) -> list[int]:
        """Return where what is chosen otherwise begins behind what is not."""
        places = sorted(set(self._places))
        return [
            place
            for last, place in zip((None, *places), places, strict=False)
            if place in unlike and last not in unlike
        ]

    def _unlike(self, first: Sequence[int], second: Sequence[int]) -> set[int]:
        """Return the places where two assignments choose otherwise."""
        whole = zip(self._places, first, second, strict=True)
        return {place for place, one, other in whole if one != other}

    @cached_property
    def _places(self) -> tuple[int, ...]:
        """By node, the forward's call with which it chooses.

        What enters goes with its first user, what leaves with its maker, and what is
        tied to another with whichever of both comes first.
        """
        problem = self.posed.problem
        known = Line.of(self.posed.candidates.program).position
        last = max(known.values(), default=0)
        places = [known.get(node.key, last) for node in problem.nodes]
        for index, node in enumerate(problem.nodes):
            if not node.operands:
                continue
            for source, _ in node.operands:
                if not problem.nodes[source].operands:
                    places[source] = min(places[source], places[index])
            if node.key not in known:
                places[index] = places[node.operands[0][0]]
        tied = nx.Graph([(tie.first, tie.second) for tie in problem.ties])
        for together in nx.connected_components(tied):
            first = min(places[index] for index in together)
            for index in together:
                places[index] = first
        return tuple(places)
