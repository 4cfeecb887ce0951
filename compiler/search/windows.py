"""An assignment within a memory limit, made better window by window.

The integer program of placements and of what is made again (joint.py) is small where
most nodes keep what they have: only those of a window, neighbours in the graph, may
choose anew, and make again something else. Windows follow until none improves. First
each node chooses by itself, so that equal blocks come to differ where that pays, then
equal nodes that have chosen alike do so again.

An assignment that holds a little too much may be near the best that fits, and every way
there through such as fit may be long. So holding more than the limit has a price in
place of a wall, which rises until what is cheapest fits.

Source: P. Shaw, "Using Constraint Programming and Local Search Methods to Solve Vehicle
Routing Problems", CP 1998: large neighbourhoods, searched exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.compiler.search.fold import Fold
from partita.compiler.search.joint import Joint, JointSearch
from partita.compiler.search.parts import THREADS, Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.worthwhile import everything

_TIMES_OVER = 2.0  # of a step's seconds: the price of holding a limit too much, first
_DEARER = 4.0  # where what is best at a price does not fit
_MOST_TIMES = 100.0  # of a step's seconds, at which nothing will fit
_MOST_FREE = 40  # classes in a window
_MOST_NEIGHBOURS = 12  # of a node through which a window grows
_WINDOW_S = 6.0
_BETTER = 1e-7


@dataclass(frozen=True)
class WindowSearch:
    """The search of one problem under one limit.

    Attributes:
        posed: the problem.
        optimizer: what holds moments of every parameter.
        limit: the bytes that a rank may hold.
        moments: at which memory has been short.
        num_live: microbatches that there are at once.
    """

    posed: Posed
    optimizer: str
    limit: int
    moments: Sequence[int]
    num_live: int = 1

    def improved(self, start: Joint, clock: Clock) -> Joint:
        """Return what windows lead to from ``start``, which need not fit.

        It may hold more than the limit if ``start`` does.
        """
        over_s = _TIMES_OVER * start.seconds
        most_s = _MOST_TIMES * start.seconds
        best, done = start, False
        while not done and clock.left_s > 0:
            done = True
            for is_apart in (True, False):
                found = self._swept(best, over_s, is_apart, clock)
                done &= found is best
                best = found
            if done and best.keeping.peak_bytes > self.limit and over_s < most_s:
                over_s, done = _DEARER * over_s, False
        return best

    def _swept(self, best: Joint, over_s: float, is_apart: bool, clock: Clock) -> Joint:
        """Return what is best once no window of one kind improves it."""
        fold = self._fold(best, is_apart)
        stale: set[int] = set()
        while clock.left_s > 0:
            seed = next((c for c in self._open(fold) if c not in stale), None)
            if seed is None:
                break
            window = self._around(fold, seed)
            found = self._within(fold, window, best, over_s, clock)
            stale |= {seed, *window}
            cost, least = (one.cost(self.limit, over_s) for one in (found, best))
            if cost < least * (1 - _BETTER):
                best, fold, stale = found, self._fold(found, is_apart), set()
        return best

    def _within(
        self,
        fold: Fold,
        window: Sequence[int],
        best: Joint,
        over_s: float,
        clock: Clock,
    ) -> Joint:
        """Return the best found that differs in a window alone."""
        allowed = everything(fold)
        free = {*window}
        for number, own in enumerate(allowed):
            if number not in free:
                own[:] = False
                own[best.choices[fold.members[number][0]]] = True
        search = JointSearch(
            self.posed,
            fold,
            self.optimizer,
            self.limit,
            allowed,
            THREADS,
            over_s,
            num_live=self.num_live,
        )
        search.keep(best, free)
        own_clock = Clock.of(min(_WINDOW_S, clock.left_s))
        return search.run(self.moments, best, own_clock).found or best

    @cached_property
    def _alike(self) -> tuple[int, ...]:
        return self.posed.fold.class_of

    def _fold(self, best: Joint, is_apart: bool) -> Fold:
        """Return which nodes choose alike: equal ones that do so already, or none."""
        problem = self.posed.problem
        if is_apart:
            return Fold.none(problem)
        numbers: dict[tuple[int, int], int] = {}
        pairs = zip(self._alike, best.choices, strict=True)
        class_of = (numbers.setdefault(pair, len(numbers)) for pair in pairs)
        return Fold(problem, tuple(class_of))

    def _open(self, fold: Fold) -> list[int]:
        """Return the classes of calls that have a choice."""
        nodes = self.posed.problem.nodes
        first = (nodes[members[0]] for members in fold.members)
        return [c for c, n in enumerate(first) if n.operands and len(n.choices) > 1]

    @cached_property
    def _near(self) -> list[list[int]]:
        """By node, those that it uses, that use it, and that it is tied to."""
        problem = self.posed.problem
        found: list[dict[int, None]] = [{} for _ in problem.nodes]
        pairs = [(i, s) for i, n in enumerate(problem.nodes) for s, _ in n.operands]
        pairs += [(tie.first, tie.second) for tie in problem.ties]
        for one, other in pairs:
            found[one][other] = found[other][one] = None
        return [sorted(near) for near in found]

    def _around(self, fold: Fold, seed: int) -> list[int]:
        """Return the classes around one, the nearest first."""
        found = {seed: None}
        queue = [seed]
        for own in queue:  # which grows
            near = {
                fold.class_of[other]
                for node in fold.members[own]
                for other in self._near[node]
            }
            if len(near) > _MOST_NEIGHBOURS and own != seed:
                continue
            for other in sorted(near):
                if other not in found and len(found) < _MOST_FREE:
                    found[other] = None
                    queue.append(other)
        return list(found)
