"""How much ranks send each other in an exchange, of all ranks at once.

The same that ``dim_runs`` says of one rank after another (compiler/ir/layout.py): on a
mesh of a thousand ranks that takes a thousand times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement, Split

Ints = NDArray[np.int64]

_Runs = list[tuple[Ints, Ints]]
"""Where runs of a dim start and stop, by the coordinates that matter; some are empty.

Each array has a dim per axis of the mesh, of size 1 where an axis does not matter.
"""


def most_exchanged(
    shape: tuple[int, ...], before: Placement, after: Placement, mesh: Mesh
) -> int:
    """Return the most elements that a rank sends or receives between the placements.

    >>> half, other = Placement.parse("S(0)"), Placement.parse("S(1)")
    >>> most_exchanged((8, 4), half, other, Mesh(tp=2))
    8
    """
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
    whole = np.zeros((1,) * mesh.ndim, np.int64)
    runs: _Runs = [(whole, whole + size)]
    for axis, sharding in enumerate(placement.shardings):
        if isinstance(sharding, Split) and sharding.dim == dim:
            index = np.arange(mesh.sizes[axis]).reshape(_along(axis, mesh))
            inner = [*accumulate(sharding.segments[:-1])]
            runs = [
                _chunk(low, high, mesh.sizes[axis], index)
                for run in runs
                for low, high in _pieces(*run, inner)
            ]
    return runs


def _along(axis: int, mesh: Mesh) -> tuple[int, ...]:
    return tuple(-1 if other == axis else 1 for other in range(mesh.ndim))


def _pieces(start: Ints, stop: Ints, inner: list[int]) -> Iterator[tuple[Ints, Ints]]:
    """Yield the parts of a run between the places where segments end."""
    for low, high in zip([None, *inner], [*inner, None], strict=True):
        first = start if low is None else np.clip(low, start, stop)
        last = stop if high is None else np.clip(high, start, stop)
        yield first, last


def _chunk(low: Ints, high: Ints, num: int, index: NDArray[Any]) -> tuple[Ints, Ints]:
    """Return what each rank has of a piece, by the rule of ``chunk``."""
    length = high - low
    step = -(-length // num)
    first, last = (np.minimum(at * step, length) for at in (index, index + 1))
    return low + first, low + last


def _length(runs: _Runs) -> Ints:
    start, stop = runs[0]
    total = stop - start
    for start, stop in runs[1:]:
        total = total + (stop - start)
    return total


def _common_length(ours: _Runs, theirs: _Runs) -> Ints:
    """Return how many indices both have; runs of one do not overlap each other."""
    total: Ints = np.zeros((1,) * ours[0][0].ndim, np.int64)
    for (start, stop), (low, high) in product(ours, theirs):
        common = np.minimum(stop, high) - np.maximum(start, low)
        if common.max() > 0:
            total = total + np.maximum(common, 0)
    return total
