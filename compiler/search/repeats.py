"""Find what repeats in a sequence: the layers of a model, forward and backward.

A program lists its nodes in the order in which the model called them, so that layers
of one kind are stretches of equal labels, one behind the other.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

LEAST_COUNT = 4
"""Fewer blocks than this are no repetition worth knowing."""


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
    best: Run | None = None
    covered = 0
    for period in range(1, len(labels) // LEAST_COUNT + 1):
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


def alike(
    labels: Sequence[int],
    operands: Sequence[Sequence[tuple[int, int]]],
    calls: Sequence[int],
) -> list[int]:
    """Return a class per node; nodes in the same place of equal blocks share one.

    What enters blocks alone (a weight) has a class by its place, too, and so has what
    leaves one (a gradient). Nodes of one class have one label.

    Args:
        labels: of each node, equal for nodes that may be alike.
        operands: of each node, the nodes and results that it uses.
        calls: the nodes that compute something, in the order of the program; of the
            others those without operands enter it, the rest leave it.
    """
    users: list[list[tuple[int, int]]] = [[] for _ in labels]
    for index, values in enumerate(operands):
        for position, (source, _) in enumerate(values):
            users[source].append((index, position))
    place: dict[int, tuple[int, int]] = {}
    for run in find_runs(np.array([labels[i] for i in calls], dtype=np.int64)):
        for at in range(run.start, run.end):
            place[calls[at]] = (run.start, (at - run.start) % run.period)
    key: list[Hashable] = [place.get(index, index) for index in range(len(labels))]
    computed = set(calls)
    for index, values in enumerate(operands):
        if index in computed:
            continue
        if values and all(source in place for source, _ in values):
            wanted = tuple((place[source], result) for source, result in values)
            key[index] = ("leaves", labels[index], wanted)
        if not values and users[index] and all(u in place for u, _ in users[index]):
            wants = sorted((place[user], position) for user, position in users[index])
            key[index] = ("enters", labels[index], tuple(wants))
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(one, len(numbers)) for one in key]
