"""Cut a logical tensor into shards, and put shards together again.

Both sides know a placement only through ``compiler/ir/layout.py``: which runs of
logical indices a rank holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, product

import torch

from partita.compiler.ir.layout import Run, shard_runs, shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Partial, Placement, Reduction, Split

_JOIN = {
    Reduction.SUM: torch.add,
    Reduction.MAX: torch.maximum,
    Reduction.MIN: torch.minimum,
}


def take_shard(
    tensor: torch.Tensor,
    placement: Placement,
    mesh: Mesh,
    coordinates: tuple[int, ...],
) -> torch.Tensor:
    """Return the part of ``tensor`` that the rank at ``coordinates`` holds.

    Where nothing is cut it is ``tensor`` itself; else a dense copy with dims in the
    same order in memory. Of a partial sum the first rank of the axis holds the value
    and the others zeros; of a partial maximum or minimum all hold it.

    >>> mesh = Mesh(tp=2)
    >>> take_shard(torch.arange(6), Placement.parse("S(0; 4|2)"), mesh, (1,))
    tensor([2, 3, 5])
    """
    shape = tuple(tensor.shape)
    shard, is_view = tensor, False
    for dim, runs in enumerate(shard_runs(shape, placement, mesh, coordinates)):
        if runs == ((0, shape[dim]),):
            continue
        parts = [shard.narrow(dim, start, stop - start) for start, stop in runs]
        is_view = len(parts) == 1
        shard = parts[0] if is_view else torch.cat(parts, dim)
    for sharding, coordinate in zip(placement.shardings, coordinates, strict=True):
        is_sum = isinstance(sharding, Partial) and sharding.reduction == Reduction.SUM
        if is_sum and coordinate > 0:
            return torch.zeros_like(shard)
    return shard.clone() if is_view else shard


def assemble(
    shards: Sequence[torch.Tensor],
    shape: tuple[int, ...],
    placement: Placement,
    mesh: Mesh,
) -> torch.Tensor:
    """Return the logical tensor of ``shape`` whose shards, by rank, are these.

    Of the equal copies along a ``B`` axis the first rank's is taken, unchecked.

    >>> mesh = Mesh(tp=2)
    >>> shards = [torch.tensor([0, 1, 4]), torch.tensor([2, 3, 5])]
    >>> assemble(shards, (6,), Placement.parse("S(0; 4|2)"), mesh)
    tensor([0, 1, 2, 3, 4, 5])

    Raises:
        ValueError: for a shard of another shape than its rank holds.
    """
    if len(shards) != mesh.size:
        raise ValueError(f"found {len(shards)} shards; want {mesh.size}, one per rank")
    for coordinates, shard in zip(mesh.all_coordinates(), shards, strict=True):
        want = shard_shape(shape, placement, mesh, coordinates)
        if tuple(shard.shape) != want:
            raise ValueError(
                f"rank {mesh.rank(coordinates)} holds {list(shard.shape)} of "
                f"{list(shape)} {placement}; want {list(want)}"
            )
    if not any(isinstance(sharding, Split) for sharding in placement.shardings):
        return _reduced(shards, placement, mesh, (0,) * mesh.ndim)
    whole = shards[0].new_empty(shape)
    for coordinates in _first_on_every_axis_but(Split, placement, mesh):
        runs = shard_runs(shape, placement, mesh, coordinates)
        shard = _reduced(shards, placement, mesh, coordinates)
        for piece in product(*(_with_positions(dim) for dim in runs)):
            there = tuple(slice(start, stop) for (start, stop), _ in piece)
            here = tuple(slice(start, stop) for _, (start, stop) in piece)
            whole[there] = shard[here]
    return whole


def _with_positions(runs: tuple[Run, ...]) -> list[tuple[Run, Run]]:
    """Pair each run of logical indices with where it lies in the shard."""
    stops = list(accumulate(stop - start for start, stop in runs))
    return list(zip(runs, zip([0, *stops], stops, strict=False), strict=True))


def _first_on_every_axis_but(
    kind: type[Split] | type[Partial], placement: Placement, mesh: Mesh
) -> list[tuple[int, ...]]:
    """Return the coordinates that are 0 on every axis of another kind."""
    axes = zip(placement.shardings, mesh.sizes, strict=True)
    return list(product(*(range(n if isinstance(s, kind) else 1) for s, n in axes)))


def _reduced(
    shards: Sequence[torch.Tensor],
    placement: Placement,
    mesh: Mesh,
    coordinates: tuple[int, ...],
) -> torch.Tensor:
    """Reduce over the partial axes what stands at ``coordinates`` on the others."""
    # Axis by axis, the last first: axes may reduce in different ways.
    grid = {c: shards[mesh.rank(c)] for c in _members(placement, mesh, coordinates)}
    for axis in reversed(range(mesh.ndim)):
        sharding = placement.shardings[axis]
        if isinstance(sharding, Partial):
            rows: dict[tuple[int, ...], list[torch.Tensor]] = {}
            for at, value in grid.items():
                rows.setdefault((*at[:axis], 0, *at[axis + 1 :]), []).append(value)
            join = _JOIN[sharding.reduction]
            grid = {at: reduce(join, values) for at, values in rows.items()}
    (result,) = grid.values()
    return result


def _members(
    placement: Placement, mesh: Mesh, coordinates: tuple[int, ...]
) -> list[tuple[int, ...]]:
    partial = _first_on_every_axis_but(Partial, placement, mesh)
    return [
        tuple(a + b for a, b in zip(at, coordinates, strict=True)) for at in partial
    ]
