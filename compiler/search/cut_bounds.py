"""The exact least of a pipeline's seconds over all ways to cut a line into stages.

Boundaries are numbered from 0, in front of the line, to n, behind it. A stage from a to
b takes ``before[b] - before[a] + hops[b]``: its calls and the boundary behind it. A
step takes what all stages take, and then (m - 1) times what the slowest does.

For a bound T on the slowest stage, the least hops to reach b with s stages are hops[b]
and the least to reach some a with s - 1, over a window of a: from the first with
before[a] >= before[b] + hops[b] - T, which memory may move, to b - 1. A table of the
least over 2^k neighbours answers every window at once. So the least hops H(T) and a cut
that has them cost O(stages n log n), less where T leaves little room.

H only rises as T falls, so a cut whose slowest stage takes more than L and at most T
costs no less than ``before[n] + H(T) + (m - 1) L``. The intervals (L, T] that may hold
a better cut than the best known are gone through, the most promising first. The cut
found for T settles all bounds down to its own slowest stage; what is left is halved.
That ends, for every round leaves out at least one of the ways that a stage can be
bounded, and is exact up to the rounding of sums.
"""

from __future__ import annotations

import heapq
from math import inf, nextafter
from typing import NamedTuple

import numpy as np

from partita.compiler.search.model import Floats, Ints

_ROUNDING = 1e-12
"""Relative; how far a sum of seconds may be off, where a test must let none escape."""


class Chosen(NamedTuple):
    """A cut: all its hops, what its slowest stage takes, where its stages end."""

    hops: float
    slowest: float
    ends: tuple[int, ...]


class Cutter:
    """Cuts one line into so many stages.

    Args:
        before: the seconds of the calls in front of each boundary.
        hops: the seconds of what crosses it; 0 for the last one.
        earliest: by stage, for each boundary where it may end, the first where it may
            begin; the end itself where it cannot end there.
    """

    def __init__(self, before: Floats, hops: Floats, earliest: list[Ints]) -> None:
        self.before = before
        self.ends = before + hops
        self.hops = hops
        self.earliest = earliest
        self.num_stages = len(earliest)
        self.last = len(before) - 1

    def least(self, num_microbatches: int) -> Chosen | None:
        """Return the cut with the least seconds; ``None`` where there is no cut."""
        best = self.least_hops(inf)
        if best is None or num_microbatches == 1:
            return best
        times = num_microbatches - 1

        def seconds(chosen: Chosen) -> float:
            return chosen.hops + times * chosen.slowest

        low = self._least_slowest()
        ahead = [
            (best.hops + times * low, low, nextafter(best.slowest, -inf), best.hops)
        ]
        while ahead:
            bound, low, high, hops = heapq.heappop(ahead)
            high = min(high, (seconds(best) - hops) / times)
            if bound >= seconds(best) or high <= low:
                continue
            found = self.least_hops(high)
            if found is None:
                continue
            best = min(best, found, key=seconds)
            high, hops = nextafter(min(high, found.slowest), -inf), found.hops
            middle = (low + high) / 2
            if high > low:
                heapq.heappush(ahead, (hops + times * middle, middle, high, hops))
            found = self.least_hops(middle) if high > low else None
            if found is not None:
                best = min(best, found, key=seconds)
                high, hops = nextafter(min(middle, found.slowest), -inf), found.hops
                heapq.heappush(ahead, (hops + times * low, low, high, hops))
        return best

    def _least_slowest(self) -> float:
        """Return less than the slowest stage of any cut takes."""
        one = float(np.diff(self.before).max())
        mean = float(self.before[-1]) / self.num_stages
        return max(one, mean) * (1 - _ROUNDING)

    def least_hops(self, bound: float) -> Chosen | None:
        """Return the cut of least hops whose stages take no more than ``bound``."""
        first = np.searchsorted(self.before, self.ends - bound)
        reached = np.zeros(1)
        start = 0  # the boundary that ``reached`` begins with
        steps: list[tuple[int, Floats]] = []
        for stage in range(self.num_stages):
            steps.append((start, reached))
            begin, end = self._window(stage, bound, start, len(reached))
            if begin >= end:
                return None
            where = np.arange(begin, end)
            low = np.maximum(first[begin:end], self.earliest[stage][begin:end]) - start
            high = np.minimum(where - start, len(reached))
            reached = self.hops[begin:end] + _least_within(reached, low, high)
            found = np.flatnonzero(reached < inf)
            if not len(found):
                return None
            start = begin + int(found[0])
            reached = reached[found[0] : found[-1] + 1]
        return self._trace(steps, first) if start <= self.last else None

    def _window(
        self, stage: int, bound: float, start: int, count: int
    ) -> tuple[int, int]:
        """Return the boundaries where a stage can end; too many do no harm."""
        left = self.num_stages - 1 - stage
        if left == 0:
            return self.last, self.last + 1
        begin, end = start + 1, self.last + 1 - left
        if bound < inf:
            slack = _ROUNDING * float(self.before[-1])
            farthest = self.before[start + count - 1] + bound + slack
            nearest = self.before[-1] - left * bound - slack
            begin = max(begin, int(np.searchsorted(self.before, nearest)))
            end = min(end, int(np.searchsorted(self.before, farthest, "right")))
        return begin, end

    def _trace(self, steps: list[tuple[int, Floats]], first: Ints) -> Chosen:
        """Return the cut that made the least at the end of the line."""
        ends = [self.last]
        for stage in reversed(range(self.num_stages)):
            start, reached = steps[stage]
            low = max(int(first[ends[-1]]), int(self.earliest[stage][ends[-1]]), start)
            ends.append(low + int(np.argmin(reached[low - start : ends[-1] - start])))
        ends.reverse()
        took = self.ends[ends[1:]] - self.before[ends[:-1]]
        hops = float(self.hops[ends[1:]].sum())
        return Chosen(hops, float(took.max()), tuple(ends[1:]))


def _least_within(values: Floats, low: Ints, high: Ints) -> Floats:
    """Return the least of each window of ``values``; infinite where it is empty."""
    low = np.maximum(low, 0)
    length = high - low
    found = np.full(len(low), inf)
    some = np.flatnonzero(length > 0)
    if not len(some):
        return found
    level = np.frexp(length[some])[1] - 1
    table = [values]
    for power in range(int(level.max())):
        before = table[-1]
        step = 1 << power
        table.append(np.minimum(before[:-step], before[step:]))
    begin, end = low[some], high[some]
    for power, least in enumerate(table):
        here = np.flatnonzero(level == power)
        left, right = begin[here], end[here] - (1 << power)
        found[some[here]] = np.minimum(least[left], least[right])
    return found
