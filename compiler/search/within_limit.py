"""What is known of a problem under a memory limit, and of bounds by prices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt

from partita.compiler.search.keeping import Keeping
from partita.compiler.search.parts import OPTIMAL_GAP
from partita.compiler.search.solver import Solution

STEP = 8.0
"""By so much prices are raised."""


@dataclass(frozen=True)
class Limited:
    """A choice per node, what is made again, and the seconds of both.

    ``fits`` by the search's own count of memory, ``keeping.peak_bytes``; where nothing
    does, it is what holds the least. By that count, nothing that fits takes less than
    ``bound_s``, as far as equal blocks are alike. The best bound of prices of memory is
    that of ``price``, in seconds per byte, at the moments ``at``: so much of it a byte
    more of the limit takes away.
    """

    choices: tuple[int, ...]
    keeping: Keeping
    seconds: float
    fits: bool
    bound_s: float
    solver: str = "bounds alone"
    price: float = 0.0
    at: tuple[int, ...] = ()

    @property
    def is_optimal(self) -> bool:
        """Whether nothing that fits is noticeably faster."""
        return self.fits and self.bound_s >= self.seconds * (1 - OPTIMAL_GAP)

    def solution(self, bound_s: float) -> Solution:
        """Return this as a solution of all that a limit allows, given its bound."""
        bound_s = min(bound_s, self.seconds)
        is_optimal = bound_s >= self.seconds * (1 - OPTIMAL_GAP)
        return Solution(
            choices=self.choices,
            seconds=self.seconds,
            status="optimal" if is_optimal else "not shown to be optimal",
            gap=(self.seconds - bound_s) / self.seconds if self.seconds > 0 else 0.0,
            bound_s=bound_s,
            solver=self.solver,
        )

    def better(self, other: Limited) -> Limited:
        """Return the faster of what fits, or what holds less; the better bound."""
        if self.fits and other.fits:
            best = self if self.seconds <= other.seconds else other
        elif self.fits or other.fits:
            best = self if self.fits else other
        else:
            best = min(self, other, key=lambda found: found.keeping.peak_bytes)
        bound = max(self, other, key=lambda found: found.bound_s)
        return replace(best, bound_s=bound.bound_s, price=bound.price, at=bound.at)


def lowered(allowed: int, limit: int, counted: int, num_bytes: int) -> int:
    """Return what to allow next, where a plan holds more than the limit.

    A search counts a little less than the plan does: so much less is allowed, at least
    a five-hundredth of the limit, and not this plan again.

    Args:
        allowed: what was allowed.
        limit: of the plan.
        counted: what the search counted for it.
        num_bytes: what it holds.

    >>> lowered(1000, 1000, 990, 1020), lowered(1000, 1000, 1000, 1001)
    (970, 998)
    """
    over = num_bytes - limit
    return min(allowed - max(over, limit // 500), counted - over)


def nearer_the_top(bounds: Mapping[float, float]) -> float:
    """Return a price next to that of the highest bound: bounds are concave in it.

    >>> nearer_the_top({0.0: 2.0, 0.64: 1.0})
    0.08
    """
    prices = sorted(bounds)
    top = prices.index(max(prices, key=lambda price: bounds[price]))
    if top == len(prices) - 1:
        return prices[top] * STEP**0.5
    above = prices[top + 1]
    if not prices[top]:
        return above / STEP
    below = max(prices[top - 1], prices[top] / STEP**2)
    if above / prices[top] >= prices[top] / below:
        return sqrt(prices[top] * above)
    return sqrt(below * prices[top])


def nearer_the_least(seconds: Mapping[float, float]) -> float:
    """Return a price next to that which led to the fastest that fits.

    It is half of the way to the next that was tried, the further away of both, in
    ratios. A lower price lets placements take more, of which more is to be made again.

    Args:
        seconds: by price; infinite where nothing fits.

    >>> nearer_the_least({1.0: float("inf"), 4.0: 3.0})
    2.0
    >>> nearer_the_least({2.0: 4.0, 4.0: 3.0, 64.0: 5.0})
    16.0
    """
    prices = sorted(seconds)
    at = min(range(len(prices)), key=lambda number: seconds[prices[number]])
    price = prices[at]
    below = prices[at - 1] if at else price / STEP**2
    above = prices[at + 1] if at + 1 < len(prices) else price
    is_above = above / price > price / below
    return sqrt(price * (above if is_above else below))
