"""Every placement of a tensor on a mesh, and what a rank holds under it.

What a rank holds is worked out here once more, by lists of indices and torch's own
``chunk``, so that a mistake in ``compiler/ir/layout.py`` would show.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, pairwise, product

import torch

from partita.compiler.errors import BadPlacement
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import (
    Broadcast,
    Partial,
    Placement,
    Reduction,
    Sharding,
    Split,
)

Shape = tuple[int, ...]

MESHES = (Mesh(a=2), Mesh(a=4), Mesh(a=2, b=2), Mesh(a=2, b=1, c=2))
SHAPES: tuple[Shape, ...] = (
    (8, 4),  # even on every mesh
    (5, 3),
    (7, 4),
    (6, 1),  # 2, 2, 2, 0 over four
    (1, 2),
    (2, 0),
    (),
)
SEGMENTS: dict[Shape, tuple[Split, ...]] = {
    (8, 4): (Split(0, (4, 4)), Split(0, (5, 3))),
    (7, 4): (Split(0, (2, 5)), Split(1, (1, 2, 1))),
}


def every_placement(shape: Shape, mesh: Mesh) -> list[Placement]:
    """Return all placements: splits of each dim, copies, partial values."""
    one: list[Sharding] = [Broadcast(), *map(Partial, Reduction)]
    one += [Split(dim) for dim in range(len(shape))]
    return [Placement(shardings) for shardings in product(one, repeat=mesh.ndim)]


def segmented_placements(shape: Shape, mesh: Mesh) -> list[Placement]:
    """Return the placements with a segmented split, splits and copies on the rest."""
    splits = SEGMENTS.get(shape, ())
    plain: list[Sharding] = [Broadcast(), *(Split(dim) for dim in range(len(shape)))]
    found: list[Placement] = []
    for shardings in product([*plain, *splits], repeat=mesh.ndim):
        if any(split in shardings for split in splits):
            try:
                found.append(Placement(shardings))
            except BadPlacement:
                continue  # a later axis would cut across the segments of an earlier one
    return found


def every_pair(shape: Shape, mesh: Mesh) -> Iterator[tuple[Placement, Placement]]:
    """Yield all ordered pairs of different placements; segments against B, S and P."""
    plain, segmented = every_placement(shape, mesh), segmented_placements(shape, mesh)
    for source, target in product([*plain, *segmented], repeat=2):
        if source != target:
            yield source, target


def some_pairs(shape: Shape, mesh: Mesh) -> Iterator[tuple[Placement, Placement]]:
    """Yield the pairs of B, P(sum) and plain splits; no splits on an axis of one."""
    found = [
        placement
        for placement in every_placement(shape, mesh)
        if all(
            sharding in (Broadcast(), Partial())
            or (isinstance(sharding, Split) and size > 1)
            for sharding, size in zip(placement.shardings, mesh.sizes, strict=True)
        )
    ]
    return ((a, b) for a, b in product(found, repeat=2) if a != b)


@lru_cache(maxsize=1 << 16)
def held(
    shape: Shape, placement: Placement, mesh: Mesh, coords: tuple[int, ...]
) -> tuple[tuple[int, ...], ...]:
    """Return, per dim, the indices that the rank at ``coords`` holds, in order."""
    dims = [[torch.arange(size)] for size in shape]
    for axis, sharding in enumerate(placement.shardings):
        if isinstance(sharding, Split):
            cuts = list(accumulate(sharding.segments[:-1]))
            pieces = [part for run in dims[sharding.dim] for part in _cut(run, cuts)]
            chunks = [piece.chunk(mesh.sizes[axis]) for piece in pieces]
            none = torch.arange(0)
            dims[sharding.dim] = [
                parts[coords[axis]] if coords[axis] < len(parts) else none
                for parts in chunks
            ]
    return tuple(
        tuple(int(index) for run in runs for index in run.tolist()) for runs in dims
    )


def _cut(run: torch.Tensor, cuts: list[int]) -> list[torch.Tensor]:
    if not run.numel():
        return [run]
    start, stop = int(run[0]), int(run[-1]) + 1
    ends = [start, *(cut for cut in cuts if start < cut < stop), stop]
    return [torch.arange(low, high) for low, high in pairwise(ends)]
