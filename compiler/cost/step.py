"""One step of a boxing: a change of placement on one mesh axis.

What a step may be follows from how chunks nest: the axes that split one dim cut it
from the first axis to the last, so an axis can take up or give up a split of a dim
only while no later axis splits that dim. Reductions nest likewise: the logical value
of ``(P(sum), P(max))`` is the sum of the maxima, so the maximum is taken first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from math import prod

from partita.compiler.cost.collectives import CollectiveKind, wire_bytes
from partita.compiler.cost.exchanged import common_runs, most_exchanged
from partita.compiler.ir.layout import (
    Cut,
    Run,
    dim_cuts,
    dim_runs,
    even_shard_shape,
    has_cut_chunks,
    is_even,
    largest_shard_shape,
    shard_runs,
    shard_shape,
)
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Reduction, Split
from partita.compiler.ir.tensor_type import TensorType


class StepKind(StrEnum):
    """What is done to the shards; the first four communicate."""

    ALL_GATHER = "all_gather"  # S -> B
    ALL_REDUCE = "all_reduce"  # P -> B
    REDUCE_SCATTER = "reduce_scatter"  # P -> S
    ALL_TO_ALL = "all_to_all"  # S -> S, other dim or other segments
    SLICE = "slice"  # B -> S
    KEEP_FIRST = "keep_first"  # B -> P(sum): zeros on all coordinates but the first
    EMBED = "embed"  # S -> P: what changes no reduction around the shard
    RELABEL = "relabel"  # both placements mean the same shards


@dataclass(frozen=True, slots=True)
class Step:
    """A change of placement on ``axis`` alone."""

    kind: StepKind
    axis: int
    before: Placement
    after: Placement

    def __str__(self) -> str:
        return f"{self.before} -> {self.after} by {self.kind}"

    @property
    def collective(self) -> CollectiveKind | None:
        """The collective it calls, or ``None`` for a step without communication."""
        return _COLLECTIVES.get(self.kind)


_COLLECTIVES = {StepKind(kind.value): kind for kind in CollectiveKind}


def buffer_copied(kind: StepKind, payload: int, size: int) -> int:
    """Return how many bytes are copied for a part of a buffer that ranks send at once.

    What is scattered is put together first; what a gather brings is parted again.

    Args:
        kind: what the buffer is for.
        payload: the bytes that a rank puts in.
        size: how many ranks there are.
    """
    if kind is StepKind.REDUCE_SCATTER:
        return payload
    return (1 + size) * payload if kind is StepKind.ALL_GATHER else 0


@lru_cache(maxsize=1 << 16)
def find_step(
    shape: tuple[int, ...], before: Placement, after: Placement, axis: int, mesh: Mesh
) -> Step | None:
    """Return the step that changes ``axis`` from one placement to the other, if any.

    >>> b, s = Placement.parse("(S(0), B)"), Placement.parse("(S(0), S(1))")
    >>> print(find_step((4, 4), b, s, 1, Mesh(dp=2, tp=2)))
    (S(0), B) -> (S(0), S(1)) by slice
    """
    old, new = before.shardings[axis], after.shardings[axis]
    if mesh.sizes[axis] == 1:
        return Step(StepKind.RELABEL, axis, before, after)
    touched = {s.dim for s in (old, new) if isinstance(s, Split)}
    for later in before.shardings[axis + 1 :]:
        if isinstance(later, Split) and later.dim in touched and shape[later.dim] > 1:
            return None  # of one index the axes' order does not matter
        if isinstance(later, Partial) and isinstance(old, Partial) and later != old:
            return None
    match old, new:
        case Split(), Broadcast():
            kind = StepKind.ALL_GATHER
        case Split(), Split():
            same = _same_shards(shape, before, after, axis, mesh)
            kind = StepKind.RELABEL if same else StepKind.ALL_TO_ALL
        case Split(), Partial():
            kind = StepKind.EMBED
        case Broadcast(), Split():
            kind = StepKind.SLICE
        case Broadcast(), Partial(reduction):
            keep = reduction is Reduction.SUM
            kind = StepKind.KEEP_FIRST if keep else StepKind.RELABEL
        case Partial(), Broadcast():
            kind = StepKind.ALL_REDUCE
        case Partial(), Split():
            kind = StepKind.REDUCE_SCATTER
        case _:
            return None
    return Step(kind, axis, before, after)


def _same_shards(
    shape: tuple[int, ...], before: Placement, after: Placement, axis: int, mesh: Mesh
) -> bool:
    """Whether every rank holds the same elements in the same order either way."""
    ends = before.shardings[axis], after.shardings[axis]
    dims = {end.dim for end in ends if isinstance(end, Split)}
    if len(dims) > 1 and all(shape[dim] > 1 for dim in dims) and 0 not in shape:
        return False
    for coords in mesh.all_coordinates():
        old, new = dim_cuts(before, mesh, coords), dim_cuts(after, mesh, coords)
        for dim in dims:
            if not _are_same_runs(shape[dim], old.get(dim, ()), new.get(dim, ())):
                return False
    return True


@lru_cache(maxsize=1 << 14)
def _are_same_runs(size: int, one: tuple[Cut, ...], two: tuple[Cut, ...]) -> bool:
    return _joined(dim_runs(size, one)) == _joined(dim_runs(size, two))


def _joined(runs: tuple[Run, ...]) -> list[list[int]]:
    """Join runs that touch and drop empty ones."""
    joined: list[list[int]] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1][1] = stop
        elif start < stop:
            joined.append([start, stop])
    return joined


def payload_bytes_at(
    type: TensorType, step: Step, mesh: Mesh, coords: tuple[int, ...]
) -> int:
    """Return the bytes that the rank at ``coords`` puts into the step's collective.

    A gather and a scatter of uneven shards pad them to the largest of their group,
    which coordinate 0 holds; an exchange sends them as they are.
    """
    first = (*coords[: step.axis], 0, *coords[step.axis + 1 :])
    match step.kind:
        case StepKind.ALL_GATHER:
            numel = prod(shard_shape(type.shape, step.before, mesh, first))
        case StepKind.ALL_REDUCE | StepKind.ALL_TO_ALL:
            numel = prod(shard_shape(type.shape, step.before, mesh, coords))
        case StepKind.REDUCE_SCATTER:
            size = mesh.sizes[step.axis]
            numel = size * prod(shard_shape(type.shape, step.after, mesh, first))
        case _:
            numel = 0
    return numel * type.dtype.itemsize


def exchanged_runs(
    shape: tuple[int, ...],
    step: Step,
    mesh: Mesh,
    sender: tuple[int, ...],
    receiver: tuple[int, ...],
) -> tuple[tuple[Run, ...], ...]:
    """Return, per dim, the indices that an exchange takes from one rank to another."""
    return tuple(
        common_runs(old, new)
        for old, new in zip(
            shard_runs(shape, step.before, mesh, sender),
            shard_runs(shape, step.after, mesh, receiver),
            strict=True,
        )
    )


def is_uneven_exchange(shape: tuple[int, ...], step: Step, mesh: Mesh) -> bool:
    """Whether the step is an exchange in which not all ranks send all others as much.

    Those of even shards of two dims do; those of segments of one dim do not.
    """
    if step.kind is not StepKind.ALL_TO_ALL:
        return False
    old, new = step.before.shardings[step.axis], step.after.shardings[step.axis]
    assert isinstance(old, Split)
    assert isinstance(new, Split)
    is_of_segments = old.dim == new.dim
    placements = step.before, step.after
    return is_of_segments or not all(is_even(shape, p, mesh) for p in placements)


def payload_bytes(type: TensorType, step: Step, mesh: Mesh) -> int:
    """Return the bytes put into the step's collective by the rank that puts most."""
    if step.collective is None:
        return 0
    placements = step.before, step.after
    if all(even_shard_shape(type.shape, p, mesh) is not None for p in placements):
        return payload_bytes_at(type, step, mesh, (0,) * mesh.ndim)
    return max(
        payload_bytes_at(type, step, mesh, coords)
        for coords in widest_coordinates(step.before, step.after, mesh)
    )


def step_wire_bytes(type: TensorType, step: Step, mesh: Mesh) -> int:
    """Return the bytes on the wire of the rank that sends or receives most."""
    if step.collective is None:
        return 0
    if is_uneven_exchange(type.shape, step, mesh):
        return type.dtype.itemsize * _most_exchanged(type.shape, step, mesh)
    payload = payload_bytes(type, step, mesh)
    return wire_bytes(step.collective, payload, mesh.sizes[step.axis])


def _most_exchanged(shape: tuple[int, ...], step: Step, mesh: Mesh) -> int:
    """Return the elements that the busiest rank sends to others, or has from them.

    Dims that do not change are cut by axes of their own, which multiply it by as much
    as the rank has that has most of them.
    """
    ends = step.before.shardings[step.axis], step.after.shardings[step.axis]
    dims = {end.dim for end in ends if isinstance(end, Split)}
    number = {dim: position for position, dim in enumerate(sorted(dims))}
    before, after = (
        Placement(
            tuple(
                Split(number[s.dim], s.segments)
                if isinstance(s, Split) and s.dim in dims
                else Broadcast()
                for s in placement.shardings
            )
        )
        for placement in (step.before, step.after)
    )
    others = Placement(
        tuple(
            s if isinstance(s, Split) and s.dim not in dims else Broadcast()
            for s in step.before.shardings
        )
    )
    largest = largest_shard_shape(shape, others, mesh)
    rest = prod(size for dim, size in enumerate(largest) if dim not in dims)
    return rest * most_exchanged(
        tuple(shape[dim] for dim in number), before, after, mesh
    )


def local_copies(type: TensorType, step: Step, mesh: Mesh) -> tuple[int, int]:
    """Return how many local copies the lowering makes, and the bytes they touch."""
    if step.kind in (StepKind.RELABEL, StepKind.ALL_REDUCE):
        return 0, 0
    before = _largest_bytes(type, step.before, step, mesh)
    after = _largest_bytes(type, step.after, step, mesh)
    match step.kind:
        case StepKind.SLICE:
            return 1, 2 * after
        case StepKind.KEEP_FIRST:
            return 3, 2 * before
        case StepKind.EMBED:
            return 1, before + after
        case StepKind.ALL_TO_ALL if is_uneven_exchange(type.shape, step, mesh):
            return 2, 2 * (before + after)
        case _:
            old, new = step.before.shardings[step.axis], step.after.shardings[step.axis]
            num_copies = copied_bytes = 0
            if isinstance(new, Split) and not _is_outermost(new, type):
                num_copies, copied_bytes = 1, 2 * before
            if isinstance(old, Split) and not _is_outermost(old, type):
                num_copies, copied_bytes = num_copies + 1, copied_bytes + 2 * after
            return num_copies, copied_bytes


def _is_outermost(split: Split, type: TensorType) -> bool:
    """Whether chunks of the split lie one after another in memory."""
    return not split.segments and prod(type.shape[: split.dim]) == 1


def _largest_bytes(
    type: TensorType, placement: Placement, step: Step, mesh: Mesh
) -> int:
    """Return the bytes of the largest shard."""
    even = even_shard_shape(type.shape, placement, mesh)
    if even is not None:
        return type.dtype.itemsize * prod(even)
    return type.dtype.itemsize * max(
        prod(shard_shape(type.shape, placement, mesh, coords))
        for coords in widest_coordinates(step.before, step.after, mesh)
    )


def widest_coordinates(
    before: Placement, after: Placement, mesh: Mesh
) -> tuple[tuple[int, ...], ...]:
    """Return coordinates among which is a rank with the largest shard of either."""
    if has_cut_chunks(before) or has_cut_chunks(after):
        return mesh.all_coordinates()
    return ((0,) * mesh.ndim,)
