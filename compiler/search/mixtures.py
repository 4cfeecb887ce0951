"""Assignments that are one in the front of a model and another one behind it.

Where a fast assignment holds too much and a lean one is slow, the fastest that fits is
often the fast one for some of a model's equal blocks and the lean one for the others.
Where two meet something is boxed, so they meet once: anywhere along the forward's
calls, with whose choices those of their backward go.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import networkx as nx

from partita.compiler.search.cut_line import Line
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import cost_of
from partita.compiler.search.within_limit import Limited

_NEAR = 12  # places on each side of where as much of the faster fits as can

Counted = Callable[[tuple[int, ...]], Limited]
"""Counts what an assignment takes and holds under the limit."""


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
            for ends in ((fast, last), (last, fast)):
                best = best.better(self._meeting(*ends, best, counted, clock))
            gained = best.seconds < last.seconds
        return best

    def _meeting(
        self,
        front: Limited,
        back: Limited,
        best: Limited,
        counted: Counted,
        clock: Clock,
    ) -> Limited:
        """Return the best of all that is tried of one as front of the other.

        About as much of the faster as fits is found by halving, then the cheapest
        places to meet near there.
        """
        mixed = self._mixed(front.choices, back.choices)
        low, high = 0, len(mixed) - 1
        while high - low > 1 and clock.left_s > 0:
            middle = (low + high) // 2
            found = counted(mixed[middle])
            best = best.better(found)
            low, high = (middle, high) if found.fits == back.fits else (low, middle)
        near = mixed[max(low - _NEAR, 0) : high + _NEAR]
        seconds = {one: cost_of(self.posed.problem, one) for one in near}
        for one in sorted(near, key=seconds.__getitem__):
            if clock.left_s <= 0 or seconds[one] >= best.seconds:
                break
            best = best.better(counted(one))
        return best

    def _mixed(
        self, front: Sequence[int], back: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Return all mixtures, each with more of the front, from none to all."""
        whole = [*zip(self._places, front, back, strict=True)]
        ends = sorted({place for place, one, other in whole if one != other})
        return [
            tuple(one if place <= end else other for place, one, other in whole)
            for end in (-1, *ends)
        ]

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
