"""Which elements of a logical tensor a rank holds.

A dim's part is a list of ``(start, stop)`` runs of logical indices, in the order
in which they lie in the shard; a plain split gives one run, a segmented split one
per segment. Chunks follow ``torch.chunk`` (6 over 4 ranks: 2, 2, 2, 0), as
DTensor and distributed checkpoints do, not balanced splitting.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from math import prod

from partita.compiler.errors import BadPlacement
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Split

Run = tuple[int, int]
"""Logical indices ``start <= index < stop`` of one dim."""


def chunk(size: int, num: int, index: int) -> Run:
    """Return what chunk ``index`` of ``num`` holds of ``size``, by torch's rule.

    >>> [chunk(6, 4, i) for i in range(4)]
    [(0, 2), (2, 4), (4, 6), (6, 6)]
    """
    step = -(-size // num)
    return min(index * step, size), min((index + 1) * step, size)


def _split_runs(
    runs: tuple[Run, ...], segments: tuple[int, ...], num: int, index: int
) -> tuple[Run, ...]:
    """Cut ``runs`` at the segment boundaries, then keep chunk ``index`` of each."""
    cuts = list(accumulate(segments[:-1]))
    parts: list[Run] = []
    for start, stop in runs:
        inside = [cut for cut in cuts if start < cut < stop]
        for low, high in pairwise([start, *inside, stop]):
            first, last = chunk(high - low, num, index)
            parts.append((low + first, low + last))
    return tuple(parts)


@lru_cache(maxsize=1 << 16)
def shard_runs(
    shape: tuple[int, ...], placement: Placement, mesh: Mesh, coords: tuple[int, ...]
) -> tuple[tuple[Run, ...], ...]:
    """Return, per dim, the runs of logical indices held at ``coords``.

    >>> mesh = Mesh(tp=2)
    >>> shard_runs((6, 4), Placement.parse("S(0; 4|2)"), mesh, (1,))
    (((2, 4), (5, 6)), ((0, 4),))
    """
    dims: list[tuple[Run, ...]] = [((0, size),) for size in shape]
    for axis, sharding in enumerate(placement.shardings):
        if isinstance(sharding, Split):
            dims[sharding.dim] = _split_runs(
                dims[sharding.dim], sharding.segments, mesh.sizes[axis], coords[axis]
            )
    return tuple(dims)


@lru_cache(maxsize=1 << 16)
def shard_shape(
    shape: tuple[int, ...], placement: Placement, mesh: Mesh, coords: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of the shard held at ``coords``.

    >>> shard_shape((6, 4), Placement.parse("(S(0), S(1))"), Mesh(a=2, b=4), (0, 3))
    (3, 1)
    """
    runs = shard_runs(shape, placement, mesh, coords)
    return tuple(sum(stop - start for start, stop in dim) for dim in runs)


def has_cut_chunks(placement: Placement) -> bool:
    """Whether an axis cuts an earlier axis's chunks at segments of its own.

    Only then may a later rank hold more than the first: of 8 in halves, then ``5|3``
    in halves, the second half is the larger.
    """
    outer: dict[int, tuple[int, ...]] = {}
    return any(
        sharding.segments != outer.setdefault(sharding.dim, sharding.segments)
        for sharding in placement.shardings
        if isinstance(sharding, Split)
    )


def widest_coordinates(placement: Placement, mesh: Mesh) -> tuple[tuple[int, ...], ...]:
    """Return coordinates among which is a rank with the largest shard."""
    if has_cut_chunks(placement):
        return mesh.all_coordinates()
    return ((0,) * mesh.ndim,)


@lru_cache(maxsize=1 << 16)
def largest_shard_shape(
    shape: tuple[int, ...], placement: Placement, mesh: Mesh
) -> tuple[int, ...]:
    """Return the shape of the largest shard."""
    shapes = (
        shard_shape(shape, placement, mesh, coords)
        for coords in widest_coordinates(placement, mesh)
    )
    return max(shapes, key=prod)


def largest_shard_numel(
    shape: tuple[int, ...], placement: Placement, mesh: Mesh
) -> int:
    """Return the number of elements of the largest shard."""
    return prod(largest_shard_shape(shape, placement, mesh))


def is_even(shape: tuple[int, ...], placement: Placement, mesh: Mesh) -> bool:
    """Whether all ranks hold shards of one shape."""
    last = tuple(size - 1 for size in mesh.sizes)
    tried = (*widest_coordinates(placement, mesh), last)
    return len({shard_shape(shape, placement, mesh, coords) for coords in tried}) == 1


def check_placement(shape: tuple[int, ...], placement: Placement, mesh: Mesh) -> None:
    """Check that ``placement`` is legal for a tensor of ``shape`` on ``mesh``.

    * one sharding per mesh axis
    * every split dim exists
    * segments add up to the dim they divide

    Raises:
        BadPlacement: naming the first thing that does not hold.
    """
    if placement.ndim != mesh.ndim:
        raise BadPlacement(
            f"placement {placement} has {placement.ndim} entries, mesh {mesh} has "
            f"{mesh.ndim} axes; give one entry per axis"
        )
    for sharding in placement.shardings:
        if isinstance(sharding, Split):
            if sharding.dim >= len(shape):
                raise BadPlacement(
                    f"placement {placement}: {sharding} names dim {sharding.dim}, but "
                    f"shape {list(shape)} has {len(shape)} dims"
                )
            if sharding.segments and sum(sharding.segments) != shape[sharding.dim]:
                raise BadPlacement(
                    f"placement {placement}: the segments of {sharding} add up to "
                    f"{sum(sharding.segments)}, dim {sharding.dim} of shape "
                    f"{list(shape)} to {shape[sharding.dim]}"
                )
        else:
            assert isinstance(sharding, Broadcast | Partial)
