"""What a boxing allocates while it runs: one new tensor after another.

Each step is a chain of links: pad, pack, the collective, unpack, trim, as the lowering
emits them (passes/lower_boxings.py); a link reads what the one before it made, which is
then free. Where a link would do nothing it is left out, so an empty chain is a view.
Exact for even splits; where segments of different sizes are padded one by one, their
parts are counted as one tensor.

Inside a collective, gloo allocates too (torch 2.13, ProcessGroupGloo.cpp; measured by
the profiler on 2 and 3 ranks): an all-gather builds its result a second time, a
reduce-scatter sums into a copy of its input. NCCL works in the given tensors. What is
carried out as an exchange (passes/exchange_instead.py) allocates what is repeated for
each of the others, or what was exchanged, and then its sum while the input is free;
what an all-reduce does so, which allocates both, says bucket_memory.py.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from math import prod

from partita.compiler.cost.step import Step, StepKind, is_uneven_exchange
from partita.compiler.ir.layout import chunk, shard_runs, shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Split
from partita.compiler.ir.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class Link:
    """A tensor that a boxing makes, and what its making needs besides."""

    name: str
    num_bytes: int
    workspace_bytes: int = 0


@lru_cache(maxsize=1 << 16)
def links(
    type: TensorType,
    step: Step,
    mesh: Mesh,
    coordinates: tuple[int, ...],
    *,
    in_order: bool,
    enters: bool,
    device: str,
    is_exchanged: bool = False,
) -> tuple[Link, ...]:
    """Return what one step allocates on the rank at ``coordinates``.

    Args:
        type: logical, of the tensor that is boxed.
        step: the change of placement.
        mesh: the mesh.
        coordinates: of the rank.
        in_order: whether the shard it starts from is contiguous.
        enters: whether that is held for the whole step: a slice of it is a view.
        device: ``cpu`` (gloo) or ``cuda`` (NCCL).
        is_exchanged: whether its gather or scatter is carried out as an exchange.
    """
    if step.kind is StepKind.RELABEL:
        return ()
    chain = _Chain(type.shape, step, mesh, coordinates, in_order, enters, is_exchanged)
    size = type.dtype.itemsize
    return tuple(
        Link(name, numel * size, inside * size if device == "cpu" else 0)
        for name, numel, inside in chain.links()
    )


_Made = tuple[str, int, int]
"""A link's name, its elements, and those that gloo allocates besides."""


@dataclass(frozen=True)
class _Cut:
    """How an axis cuts one dim of what its ranks hold together, piece by piece."""

    pieces: tuple[int, ...]
    num: int
    index: int

    @cached_property
    def own(self) -> int:
        """The size of the rank's own chunks."""
        ends = (chunk(size, self.num, self.index) for size in self.pieces)
        return sum(stop - start for start, stop in ends)

    @cached_property
    def padded(self) -> int:
        """The size of the largest chunks."""
        return sum(-(-size // self.num) for size in self.pieces)

    @cached_property
    def has_groups(self) -> bool:
        """Whether there are pieces of several sizes, which are treated one by one."""
        return len(set(self.pieces)) > 1


@dataclass(frozen=True, slots=True)
class _Chain:
    shape: tuple[int, ...]
    step: Step
    mesh: Mesh
    coordinates: tuple[int, ...]
    in_order: bool
    enters: bool
    is_exchanged: bool
    _cuts: dict[int, _Cut] = field(default_factory=dict[int, _Cut])  # by dim

    def links(self) -> Iterator[_Made]:
        step, axis = self.step, self.step.axis
        old, new = step.before.shardings[axis], step.after.shardings[axis]
        before, after = (prod(self._shard(p)) for p in (step.before, step.after))
        whole = self._shard(step.before.with_axis(axis, Broadcast()))
        if prod(whole) == 0:
            return
        match old, new:
            case Split(), Broadcast():
                packed = list(self._pad(whole, old.dim))
                yield from packed
                yield from self._gather(whole, old.dim, packed)
            case Partial(), Split():
                cut, padded = self._cut(new.dim), self._padded(whole, new.dim)
                yield from self._divide(whole, new.dim)
                made = padded // cut.num
                summed = padded - made if self.is_exchanged else padded
                yield "reduce_scatter", made, summed
                yield from self._trim(whole, new.dim)
            case Split(), Split() if is_uneven_exchange(self.shape, step, self.mesh):
                yield "pack", before, 0
                yield "all_to_all", after, 0
                yield "unpack", after, 0
            case Split(), Split():
                sent = _with(whole, old.dim, self._cut(old.dim).own)
                yield from self._divide(sent, new.dim)
                yield "all_to_all", prod(sent), 0
                got = _with(whole, new.dim, self._cut(new.dim).own)
                yield from self._join(got, old.dim)
            case Broadcast(), Split():
                is_in_place = self.in_order and self._is_in_place(whole, new.dim)
                is_view = self.enters and is_in_place
                if after < before and not is_view:
                    yield "slice", after, 0
            case Split(), Partial():
                if before < after:
                    yield "pad", after, 0
            case _:
                yield step.kind, after, 0

    # --- parts of a step, on the shape of what the ranks hold together

    def _pad(self, whole: Sequence[int], dim: int) -> Iterator[_Made]:
        """Pad the rank's chunks to the largest; copy what is not in order."""
        cut = self._cut(dim)
        padded = prod(_with(whole, dim, cut.padded))
        if cut.own < cut.padded:
            yield "pad", padded, 0
        if cut.has_groups:
            yield "join", padded, 0
        elif cut.own == cut.padded and not self.in_order:
            yield "pack", padded, 0

    def _divide(self, whole: Sequence[int], dim: int) -> Iterator[_Made]:
        """Bring the chunks of each rank together."""
        padded = self._padded(whole, dim)
        if padded > prod(whole):
            yield "pad", padded, 0
        if not (self.in_order and self._is_in_place(whole, dim)):
            yield "pack", padded, 0
        if self._cut(dim).has_groups:
            yield "join", padded, 0

    def _gather(
        self, whole: Sequence[int], dim: int, packed: Sequence[_Made]
    ) -> Iterator[_Made]:
        gathered = self._padded(whole, dim)
        # What was packed is free once it is repeated for each.
        free = packed[-1][1] if packed and self.is_exchanged else 0
        yield "all_gather", gathered, gathered - free
        yield from self._join(whole, dim)

    def _join(self, whole: Sequence[int], dim: int) -> Iterator[_Made]:
        """Bring the chunks of all ranks into order, and leave out their padding."""
        padded = self._padded(whole, dim)
        is_in_place = self._is_in_place(whole, dim)
        if not is_in_place:
            yield "unpack", padded, 0
        if self._cut(dim).has_groups or (prod(whole) < padded and not is_in_place):
            yield "trim", prod(whole), 0

    def _trim(self, whole: Sequence[int], dim: int) -> Iterator[_Made]:
        """Leave out the padding of the rank's own chunks."""
        cut = self._cut(dim)
        is_padded = cut.own < cut.padded and not self._is_in_place(whole, dim)
        if cut.has_groups or is_padded:
            yield "trim", prod(_with(whole, dim, cut.own)), 0

    # --- sizes

    def _shard(self, placement: Placement) -> tuple[int, ...]:
        return shard_shape(self.shape, placement, self.mesh, self.coordinates)

    def _cut(self, dim: int) -> _Cut:
        """Return how the axis cuts ``dim``, before the step or after it."""
        if dim not in self._cuts:  # there may be thousands of pieces
            self._cuts[dim] = self._find_cut(dim)
        return self._cuts[dim]

    def _find_cut(self, dim: int) -> _Cut:
        axis = self.step.axis
        placements = self.step.before, self.step.after
        splits = [placement.shardings[axis] for placement in placements]
        split = next(s for s in splits if isinstance(s, Split) and s.dim == dim)
        together = self.step.before.with_axis(axis, Broadcast())
        runs = shard_runs(self.shape, together, self.mesh, self.coordinates)[dim]
        cuts = list(accumulate(split.segments[:-1]))
        pieces: list[int] = []
        for start, stop in runs:
            within = cuts[bisect_right(cuts, start) : bisect_left(cuts, stop)]
            pieces += [b - a for a, b in pairwise([start, *within, stop]) if a < b]
        return _Cut(tuple(pieces), self.mesh.sizes[axis], self.coordinates[axis])

    def _padded(self, whole: Sequence[int], dim: int) -> int:
        """Return the elements of all chunks, each as large as the largest."""
        cut = self._cut(dim)
        return prod(_with(whole, dim, cut.padded * cut.num))

    def _is_in_place(self, whole: Sequence[int], dim: int) -> bool:
        """Whether the chunks lie one after another as they are."""
        return len(self._cut(dim).pieces) == 1 and prod(whole[:dim]) == 1


def _with(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])
