"""Which elements of a logical tensor a rank holds.

A dim's part is a list of ``(start, stop)`` runs of logical indices, in the order
in which they lie in the shard; a plain split gives one run, a segmented split one
per segment. Chunks follow ``torch.chunk`` (6 over 4 ranks: 2, 2, 2, 0), as
DTensor and distributed checkpoints do, not balanced splitting.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import lru_cache
from itertools import accumulate, pairwise
from math import gcd, prod

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


Cut = tuple[tuple[int, ...], int, int]
"""What one axis does to a dim: its segments, and of how many chunks which is held."""


@lru_cache(maxsize=1 << 16)
def dim_runs(size: int, cuts: tuple[Cut, ...]) -> tuple[Run, ...]:
    """Return the runs of a dim of ``size`` that are left of it, axis by axis.

    >>> dim_runs(8, (((), 2, 1), ((5, 3), 2, 0)))
    ((4, 5), (5, 7))
    """
    if not cuts:
        return ((0, size),)
    *outer, (segments, num, index) = cuts
    inner = list(accumulate(segments[:-1]))
    parts: list[Run] = []
    for start, stop in dim_runs(size, tuple(outer)):
        inside = inner[bisect_right(inner, start) : bisect_left(inner, stop)]
        for low, high in pairwise([start, *inside, stop]):
            first, last = chunk(high - low, num, index)
            parts.append((low + first, low + last))
    return tuple(parts)


@lru_cache(maxsize=1 << 16)
def dim_length(size: int, cuts: tuple[Cut, ...]) -> int:
    """Return how many indices of a dim ``dim_runs`` leaves."""
    return sum(stop - start for start, stop in dim_runs(size, cuts))


def dim_cuts(
    placement: Placement, mesh: Mesh, coords: tuple[int, ...]
) -> dict[int, tuple[Cut, ...]]:
    """Return what is done to each dim that is split, for the rank at ``coords``."""
    cuts: dict[int, tuple[Cut, ...]] = {}
    sizes = mesh.sizes
    for axis, sharding in enumerate(placement.shardings):
        if isinstance(sharding, Split):
            cut = sharding.segments, sizes[axis], coords[axis]
            cuts[sharding.dim] = (*cuts.get(sharding.dim, ()), cut)
    return cuts


@lru_cache(maxsize=1 << 16)
def shard_runs(
    shape: tuple[int, ...], placement: Placement, mesh: Mesh, coords: tuple[int, ...]
) -> tuple[tuple[Run, ...], ...]:
    """Return, per dim, the runs of logical indices held at ``coords``.

    >>> mesh = Mesh(tp=2)
    >>> shard_runs((6, 4), Placement.parse("S(0; 4|2)"), mesh, (1,))
    (((2, 4), (5, 6)), ((0, 4),))
    """
    cuts = dim_cuts(placement, mesh, coords)
    return tuple(dim_runs(size, cuts.get(dim, ())) for dim, size in enumerate(shape))


@lru_cache(maxsize=1 << 16)
def shard_shape(
    shape: tuple[int, ...], placement: Placement, mesh: Mesh, coords: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the shape of the shard held at ``coords``.

    >>> shard_shape((6, 4), Placement.parse("(S(0), S(1))"), Mesh(a=2, b=4), (0, 3))
    (3, 1)
    """
    cuts = dim_cuts(placement, mesh, coords)
    return tuple(
        dim_length(size, cuts[dim]) if dim in cuts else size
        for dim, size in enumerate(shape)
    )


@lru_cache(maxsize=1 << 16)
def even_shard_shape(
    shape: tuple[int, ...], placement: Placement, mesh: Mesh
) -> tuple[int, ...] | None:
    """Return the shape of every rank's shard, ``None`` where they may differ.

    Where each run ends at a multiple of a unit, as many chunks as divide that unit are
    of one size in every run.

    >>> even_shard_shape((8, 6), Placement.parse("(S(0; 4|4), S(1))"), Mesh(a=2, b=3))
    (4, 2)
    >>> even_shard_shape((8, 6), Placement.parse("(S(0; 5|3), B)"), Mesh(a=2, b=3))
    """
    local, units = list(shape), list(shape)
    for sharding, num in zip(placement.shardings, mesh.sizes, strict=True):
        if isinstance(sharding, Split):
            unit = gcd(units[sharding.dim], *sharding.segments)
            if unit % num:
                return None
            units[sharding.dim] = unit // num
            local[sharding.dim] //= num
    return tuple(local)


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
    even = even_shard_shape(shape, placement, mesh)
    if even is not None:
        return even
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
    if even_shard_shape(shape, placement, mesh) is not None:
        return True
    last = tuple(size - 1 for size in mesh.sizes)
    tried = (*widest_coordinates(placement, mesh), last)
    return len({shard_shape(shape, placement, mesh, coords) for coords in tried}) == 1


def check_entries(placement: Placement, mesh: Mesh) -> None:
    """Check that a placement has a sharding for every axis of a mesh.

    Raises:
        BadPlacement: with how many there are of both.
    """
    if placement.ndim != mesh.ndim:
        raise BadPlacement(
            f"placement {placement} has {placement.ndim} entries, mesh {mesh} has "
            f"{mesh.ndim} axes; give one entry per axis"
        )


def check_placement(shape: tuple[int, ...], placement: Placement, mesh: Mesh) -> None:
    """Check that ``placement`` is legal for a tensor of ``shape`` on ``mesh``.

    * one sharding per mesh axis
    * every split dim exists
    * segments add up to the dim they divide

    Raises:
        BadPlacement: naming the first thing that does not hold.
    """
    check_entries(placement, mesh)
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
