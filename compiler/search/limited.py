"""The fastest plan that a memory limit allows: placements, and what is made again.

For a few prices of memory, the cheapest placements are searched (memory_price.py); for
each of these, what to make again so that they keep to the limit (keeping.py). The
fastest of all that fit is taken. The price is raised until placements fit, then prices
between the last that did not and the first that did are tried.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt

from partita.compiler.search.fold import Fold
from partita.compiler.search.holdings import Holdings, find_holdings
from partita.compiler.search.keeping import Keeping, choose_keeping
from partita.compiler.search.memory_price import MemoryPrice
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import cost_of
from partita.compiler.search.solver import Solution, solve

_FIRST = 0.1  # of the seconds and bytes that the plan without a limit takes
_STEP = 8.0
_MOST_RAISES = 6
_MOST_MIDDLES = 3
_KEEPING_S = 10.0
_SHARE = 0.5  # of the time that is left, for one search of placements


@dataclass(frozen=True)
class Limited:
    """A choice per node, what is made again, and the seconds of both.

    ``fits`` by the search's own count of memory, ``keeping.peak_bytes``; where nothing
    does, it is what holds the least.
    """

    solution: Solution
    keeping: Keeping
    seconds: float
    fits: bool


@dataclass
class LimitedSearch:
    """The search of one problem under one limit after another.

    What a price of memory led to is kept, so that a second limit takes little.

    Attributes:
        posed: the problem.
        free: its fastest assignment without a limit.
        optimizer: what holds moments of every parameter.
        clock: when to end.
        moments: the calls at which memory has been short so far.
    """

    posed: Posed
    free: Solution
    optimizer: str
    clock: Clock
    moments: list[int] = field(default_factory=list[int])
    _solved: dict[object, Solution] = field(default_factory=dict[object, Solution])
    _held: dict[tuple[int, ...], Holdings] = field(
        default_factory=dict[tuple[int, ...], Holdings]
    )

    @cached_property
    def fold(self) -> Fold:
        """The problem's repeated blocks."""
        return Fold.of(self.posed.problem)

    def run(self, limit: int) -> Limited:
        """Return the fastest assignment found that holds at most ``limit`` bytes."""
        best = self._keep(self.free, limit)
        if best.fits and not best.keeping.again:
            return best
        if not self.moments:
            self.moments.append(best.keeping.moment)
        low, high, price = 0.0, 0.0, _FIRST
        for _ in range(_MOST_RAISES):
            found = self._at(price, limit)
            best = _better(best, found)
            if found.fits:
                high = price
                break
            low, price = price, price * _STEP
            if self._is_late():
                break
        for _ in range(_MOST_MIDDLES if high else 0):
            if self._is_late():
                break
            middle = sqrt(max(low, high / _STEP**2) * high)
            found = self._at(middle, limit)
            best = _better(best, found)
            low, high = (low, middle) if found.fits else (middle, high)
        return best

    def _is_late(self) -> bool:
        return self.clock.left_s <= 0

    def _at(self, price: float, limit: int) -> Limited:
        """Search with memory at a price, relative to the free assignment's time."""
        known = price, tuple(self.moments)
        if known not in self._solved:
            priced = MemoryPrice(self.posed, self.optimizer, self.moments)
            unit = self.free.seconds / max(self._held_by(self.free).most, 1)
            fold = Fold(priced.problem(price * unit), self.fold.class_of)
            time_s = _SHARE * max(self.clock.left_s, 1.0)
            self._solved[known] = solve(fold.problem, time_s, fold=fold)
        found = self._keep(self._solved[known], limit)
        if not found.fits and found.keeping.moment not in self.moments:
            self.moments.append(found.keeping.moment)
        return found

    def _held_by(self, solution: Solution) -> Holdings:
        choices = solution.choices
        if choices not in self._held:
            self._held[choices] = find_holdings(self.posed, choices, self.optimizer)
        return self._held[choices]

    def _keep(self, solution: Solution, limit: int) -> Limited:
        """Choose what to make again of an assignment."""
        clock = Clock.of(min(_KEEPING_S, max(self.clock.left_s, 1.0)))
        keeping = choose_keeping(self._held_by(solution), limit, clock)
        seconds = cost_of(self.posed.problem, solution.choices) + keeping.seconds
        return Limited(solution, keeping, seconds, keeping.peak_bytes <= limit)


def _better(one: Limited, other: Limited) -> Limited:
    if one.fits and other.fits:
        return one if one.seconds <= other.seconds else other
    if one.fits or other.fits:
        return one if one.fits else other
    return one if one.keeping.peak_bytes <= other.keeping.peak_bytes else other
