"""How much ranks send each other in an exchange.

It is found of all ranks at once: one after another takes a thousand times as long on a
mesh of a thousand ranks. Only where a dim lies in many segments are they looked at in
turn, since each rank has few of the runs that all of them have.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from partita.compiler.ir.layout import Run, dim_cuts, dim_length, dim_runs
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement, Split

Ints = NDArray[np.int64]

_Runs = tuple[Ints, Ints]
"""Where runs of a dim start and stop; some are empty.

Each array has a dim of runs, then one for each axis of the mesh, of size 1 where an
axis does not matter.
"""

_MOST_AT_ONCE = 64
"""Runs of a dim, of all ranks together."""


@lru_cache(maxsize=1 << 14)
def most_exchanged(
    shape: tuple[int, ...], before: Placement, after: Placement, mesh: Mesh
) -> int:
    """Return the most elements that a rank sends or receives between the placements.

    >>> half, other = Placement.parse("S(0)"), Placement.parse("S(1)")
    >>> most_exchanged((8, 4), half, other, Mesh(tp=2))
    8
    """
    dims = range(len(shape))
    most = max(_num_runs(p, dim) for p in (before, after) for dim in dims)
    count = _at_once if most <= _MOST_AT_ONCE else _in_turn
    return count(shape, before, after, mesh)


@lru_cache(maxsize=1 << 14)
def common_runs(left: tuple[Run, ...], right: tuple[Run, ...]) -> tuple[Run, ...]:
    """Return the indices that both hold, in order, as their runs are."""
    found: list[Run] = []
    ours, theirs = 0, 0
    while ours < len(left) and theirs < len(right):
        (a, b), (c, d) = left[ours], right[theirs]
        if max(a, c) < min(b, d):
            found.append((max(a, c), min(b, d)))
        if b < d:
            ours += 1
        else:
            theirs += 1
    return tuple(found)


def _num_runs(placement: Placement, dim: int) -> int:
    return prod(
        len(sharding.segments) or 1
        for sharding in placement.shardings
        if isinstance(sharding, Split) and sharding.dim == dim
    )


def _in_turn(
    shape: tuple[int, ...], before: Placement, after: Placement, mesh: Mesh
) -> int:
    ends = zip(before.shardings, after.shardings, mesh.sizes, strict=True)
    busiest = 0
    for coords in product(
        *(
            range(size if isinstance(old, Split) or isinstance(new, Split) else 1)
            for old, new, size in ends
        )
    ):
        old, new = dim_cuts(before, mesh, coords), dim_cuts(after, mesh, coords)
        held = wanted = kept = 1
        for dim, size in enumerate(shape):
            ours, theirs = old.get(dim, ()), new.get(dim, ())
            held *= dim_length(size, ours)
            wanted *= dim_length(size, theirs)
            common = common_runs(dim_runs(size, ours), dim_runs(size, theirs))
            kept *= sum(stop - start for start, stop in common)
        busiest = max(busiest, held - kept, wanted - kept)
    return busiest


def _at_once(
    shape: tuple[int, ...], before: Placement, after: Placement, mesh: Mesh
) -> int:
    held: Ints = np.ones((1,) * mesh.ndim, np.int64)
    wanted, kept = held, held
    for dim, size in enumerate(shape):
        ours, theirs = (_runs_of(size, dim, p, mesh) for p in (before, after))
        held = held * _length(ours)
        wanted = wanted * _length(theirs)
        kept = kept * _common_length(ours, theirs)
    return int(max((held - kept).max(), (wanted - kept).max()))


def _runs_of(size: int, dim: int, placement: Placement, mesh: Mesh) -> _Runs:
    """Return what ranks hold of a dim, by the rule of ``dim_runs``."""
    start: Ints = np.zeros((1,) * (1 + mesh.ndim), np.int64)
    runs = start, start + size
    for axis, sharding in enumerate(placement.shardings):
        if isinstance(sharding, Split) and sharding.dim == dim:
            index = np.arange(mesh.sizes[axis]).reshape(_along(axis, mesh))
            low, high = _pieces(*runs, [*accumulate(sharding.segments[:-1])])
            length = high - low
            step = -(-length // mesh.sizes[axis])  # by the rule of ``chunk``
            first = low + np.minimum(index * step, length)
            runs = first, low + np.minimum((index + 1) * step, length)
    return runs


def _along(axis: int, mesh: Mesh) -> tuple[int, ...]:
    return tuple(-1 if other == axis else 1 for other in range(mesh.ndim))


def _pieces(start: Ints, stop: Ints, inner: list[int]) -> _Runs:
    """Return the parts of runs between the places where segments end."""
    if not inner:
        return start, stop
    places = np.array(inner).reshape(-1, *[1] * start.ndim)
    cuts = np.minimum(np.maximum(places, start), stop)
    low, high = np.concatenate([start[None], cuts]), np.concatenate([cuts, stop[None]])
    return low.reshape(-1, *start.shape[1:]), high.reshape(-1, *start.shape[1:])


def _length(runs: _Runs) -> Ints:
    start, stop = runs
    return (stop - start).sum(axis=0)


def _common_length(ours: _Runs, theirs: _Runs) -> Ints:
    """Return how many indices both have; runs of one do not overlap each other."""
    start, stop = (ends[:, None] for ends in ours)
    low, high = theirs
    common = np.minimum(stop, high) - np.maximum(start, low)
    return np.maximum(common, 0).sum(axis=(0, 1))
