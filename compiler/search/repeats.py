"""Find what repeats in a sequence: the layers of a model, forward and backward.

A program lists its nodes in the order in which the model called them, so that layers
of one kind are stretches of equal labels, one behind the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from partita.compiler.search.edges import Edges
from partita.compiler.search.model import Ints

LEAST_COUNT = 4
"""Fewer blocks than this are no repetition worth knowing."""

_STRETCH, _FACTOR = 8, 1_000_003  # labels that are compared at once, as one number


@dataclass(frozen=True, slots=True)
class Run:
    """``count`` equal blocks of ``period`` labels each, from ``start`` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The position behind the last block."""
        return self.start + self.period * self.count


def find_runs(labels: Ints) -> list[Run]:
    """Return the runs of a sequence, the longest taken first, in order.

    >>> find_runs(np.array([9, 1, 2, 1, 2, 1, 2, 1, 2, 1, 7]))
    [Run(start=1, period=2, count=4)]
    """
    found: list[Run] = []
    open_ = [(0, len(labels))]
    while open_:
        low, high = open_.pop()
        run = _longest(labels[low:high])
        if run is not None:
            run = Run(low + run.start, run.period, run.count)
            found.append(run)
            open_ += [(low, run.start), (run.end, high)]
    return sorted(found, key=lambda run: run.start)


def _longest(labels: Ints) -> Run | None:
    """Return the run that covers most; of those, the one of the shortest period."""
    below = len(labels) + 1
    while below > LEAST_COUNT:
        least = max(below // 2, LEAST_COUNT)
        found = _covering(labels, least, below)
        if found is not None:
            return found
        below = least
    return None


def _covering(labels: Ints, least: int, below: int) -> Run | None:
    """Return the run that covers most, if that is ``least`` or more.

    Args:
        labels: the sequence.
        least: how many labels a run must cover.
        below: so many or more are covered by no run.
    """
    best: Run | None = None
    covered = least - 1
    for period in _periods(labels, least, below):
        differ = np.flatnonzero(labels[period:] != labels[:-period])
        edges = np.concatenate([[-1], differ, [len(labels) - period]])
        lengths = np.diff(edges) - 1
        at = int(lengths.argmax())
        length = int(lengths[at]) + period
        count = length // period
        if count >= LEAST_COUNT and count * period > covered:
            best = Run(int(edges[at]) + 1, period, count)
            covered = count * period
    return best


def _periods(labels: Ints, least: int, below: int) -> list[int]:
    """Return the periods of all runs that cover ``least`` labels, and maybe others.

    Of such a run three quarters equal, one by one, what comes a period later. In so
    many there is a stretch that begins at one of the places looked at here.
    """
    equal = -(-(LEAST_COUNT - 1) * least // LEAST_COUNT)
    stretch = min(_STRETCH, -(-equal // 2))
    codes = labels[: len(labels) - stretch + 1]
    for shift in range(1, stretch):  # what overflows is a number, too
        codes = codes * _FACTOR + labels[shift : len(labels) - stretch + 1 + shift]
    places = np.arange(0, len(codes), equal - stretch + 1)
    periods = np.arange(1, (below - 1) // LEAST_COUNT + 1)
    later = places[:, None] + periods
    is_equal = codes[np.minimum(later, len(codes) - 1)] == codes[places, None]
    is_equal &= later < len(codes)
    return [int(period) for period in periods[is_equal.any(axis=0)]]


def alike(labels: Sequence[int], edges: Edges, calls: Sequence[int]) -> list[int]:
    """Return a class per node; nodes in the same place of equal blocks share one.

    What enters blocks alone (a weight) has a class by its place, too, and so has what
    leaves one (a gradient). Nodes of one class have one label.

    Args:
        labels: of each node, equal for nodes that may be alike.
        edges: who uses what.
        calls: the nodes that compute something, in the order of the program; of the
            others those without operands enter it, the rest leave it.
    """
    computing = np.array(calls, dtype=np.int64)
    place = _places(np.array(labels, dtype=np.int64), computing)
    is_other = np.ones(len(labels), dtype=np.bool_)
    is_other[computing] = False
    key: list[Hashable] = np.where(place < 0, np.arange(len(labels)), place).tolist()
    has_operands = np.diff(edges.start) > 0
    for index in np.flatnonzero(is_other & has_operands).tolist():
        uses = slice(edges.start[index], edges.start[index + 1])
        sources = place[edges.source[uses]].tolist()
        if min(sources) >= 0:
            wanted = tuple(zip(sources, edges.result[uses].tolist(), strict=True))
            key[index] = ("leaves", labels[index], wanted)
    enters = np.flatnonzero((is_other & ~has_operands)[edges.source])
    users: dict[int, list[tuple[int, int]]] = {}
    own = (edges.source, place[edges.user], edges.position)
    for index, user, at in zip(*(each[enters].tolist() for each in own), strict=True):
        users.setdefault(index, []).append((user, at))
    for index, used_by in users.items():
        wants = sorted(used_by)
        if wants[0][0] >= 0:
            key[index] = ("enters", labels[index], tuple(wants))
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(one, len(numbers)) for one in key]


def _places(labels: Ints, calls: Ints) -> Ints:
    """Return the node of the first block in whose place each node is; -1 for none."""
    place = np.full(len(labels), -1)
    for run in find_runs(labels[calls]):
        at = np.arange(run.start, run.end)
        place[calls[at]] = calls[run.start + (at - run.start) % run.period]
    return place
