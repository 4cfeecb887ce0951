"""Alpha and beta of a collective, from its seconds by size.

One line is one algorithm or protocol; where the cheapest of several counts, seconds by
size are the lowest of several lines. Where one line gives way to the next is tried
everywhere (Bellman, "On the approximation of curves by line segments using dynamic
programming", CACM 4(6), 1961), each line fitted by least squares of relative errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import median

import numpy as np

Point = tuple[float, float]
"""Bytes and seconds."""

Line = tuple[float, float]
"""Seconds for no byte at all, and bytes per second."""

_SLOWEST_GAIN = 0.8  # another line must bring the error down at least by a fifth
_ROUNDING = 1e-10  # relative errors that another line cannot explain


def fit_lines(points: Sequence[Point], most: int = 3) -> tuple[Line, ...]:
    """Return up to ``most`` lines whose lowest is near the points.

    >>> points = [(b, min(1 + b / 10, 5 + b / 50)) for b in (1, 5, 20, 100, 400, 900)]
    >>> [(round(a, 6), round(rate, 6)) for a, rate in fit_lines(points)]
    [(1.0, 10.0), (5.0, 50.0)]
    """
    points = sorted(points)
    found: tuple[Line, ...] = (_line(points),)
    for count in range(2, min(most, len(points) // 2) + 1):
        if _squares(points, found) <= _ROUNDING**2 * len(points):
            break
        lines = _segments(points, count)
        if _squares(points, lines) < _SLOWEST_GAIN**2 * _squares(points, found):
            found = lines
    return found


def line_seconds(lines: Sequence[Line], num_bytes: float) -> float:
    """Return the lowest of the lines at ``num_bytes``."""
    return min(start_s + num_bytes / rate for start_s, rate in lines)


def line_error(points: Sequence[Point], lines: Sequence[Line]) -> float:
    """Return the median relative error of the lowest of the lines."""
    return median(abs(line_seconds(lines, b) - s) / s for b, s in points)


def _squares(points: Sequence[Point], lines: Sequence[Line]) -> float:
    return sum((line_seconds(lines, b) / s - 1) ** 2 for b, s in points)


def _line(points: Sequence[Point]) -> Line:
    """Return the line of least relative squares whose two figures are not negative."""
    sizes = np.array([b for b, _ in points])
    seconds = np.array([s for _, s in points])
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    start_s, per_byte_s = np.linalg.lstsq(columns, np.ones(len(points)))[0]
    if start_s < 0:
        start_s, per_byte_s = 0.0, _alone(columns[:, 1])
    if per_byte_s <= 0:
        start_s, per_byte_s = _alone(columns[:, 0]), 1e-15
    return float(start_s), 1 / float(per_byte_s)


def _alone(column: np.ndarray) -> float:
    return float(column.sum() / (column**2).sum())


def _segments(points: Sequence[Point], count: int) -> tuple[Line, ...]:
    """Return the lines of the best cut of sorted points into ``count`` runs."""

    @cache
    def run(start: int, stop: int) -> tuple[float, Line]:
        line = _line(points[start:stop])
        return _squares(points[start:stop], (line,)), line

    @cache
    def best(stop: int, left: int) -> tuple[float, tuple[Line, ...]]:
        if left == 1:
            error, line = run(0, stop)
            return error, (line,)
        options = [
            (best(cut, left - 1), run(cut, stop))
            for cut in range(2 * (left - 1), stop - 1)
        ]
        error, lines = min(
            (before[0] + last[0], (*before[1], last[1])) for before, last in options
        )
        return error, lines

    return best(len(points), count)[1]
