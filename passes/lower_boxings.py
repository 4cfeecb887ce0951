"""Lower a boxing to aten ops and functional collectives on one rank's shards.

Before   %3: f32[8, 4] (B,) = box(%2 (S(1),))                        on tp=2
After    %3.1 = _c10d_functional.all_gather_into_tensor(%2, 2, 'stage0/tp')
         %3.2 = wait_tensor(%3.1);  %3 = reshape(permute(reshape(%3.2)))

Requires  steps that lead from the placement of the shards to the one asked for
Ensures   all ranks of a group call the same collectives in the same order, each with
          as many bytes as ``compiler/cost/step.py`` counts; where shards are even, all
          ranks get one program, since offsets are computed from coordinates
Keeps     every value, infinities and NaN among them
Not here  choosing the steps (compiler/cost/boxing.py)
Source    gathers and scatters pad to the largest shard, then drop the padding, as
          DTensor does: gloo and NCCL want even shards. By ``torch.chunk``'s rule the
          padded chunks of a dim, one after another, are the dim with all the padding
          at its end.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from math import inf, prod

import torch
from torch import fx

from partita.compiler.cost.step import (
    Step,
    StepKind,
    is_uneven_exchange,
)
from partita.compiler.ir.layout import Run, chunk, shard_runs, shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Reduction, Split
from partita.compiler.ir.tensor_type import TensorType
from partita.passes.local_tensors import Index, Local, TensorWriter, local
from partita.passes.uneven_exchange import Messages, packed, unpacked

aten = torch.ops.aten
c10d = torch.ops._c10d_functional


def emit_steps(
    graph: fx.Graph,
    x: fx.Node,
    type: TensorType,
    steps: tuple[Step, ...],
    mesh: Mesh,
    coords: tuple[int, ...],
    coordinate_nodes: tuple[fx.Node, ...],
    stage: int,
    *,
    enters: bool = False,
) -> tuple[fx.Node, dict[fx.Node, TensorType]]:
    """Insert ``steps`` on ``x`` at the graph's insertion point.

    ``type`` is logical. ``coordinate_nodes`` are ints, one per mesh axis; the groups of
    the collectives are named ``stage0/tp``. Of what ``enters`` the program, which is
    held for the whole step, a first slice is a view; any other is a copy, so that what
    it is of may go.

    Returns:
        The result, and what the collectives make and the waits for them.
    """
    node = x
    types: dict[fx.Node, TensorType] = {}
    for step in steps:
        if step.kind is not StepKind.RELABEL:
            lowering = _StepLowering(graph, type, step, mesh, coords, coordinate_nodes)
            node = lowering.emit(node, f"stage{stage}/{mesh.names[step.axis]}", enters)
            enters = False
            types |= lowering.types
    return node, types


@lru_cache(maxsize=1 << 16)
def lowering_key(
    shape: tuple[int, ...], step: Step, mesh: Mesh, coords: tuple[int, ...]
) -> object:
    """Return what two ranks have equal where a step is lowered alike on both."""
    if step.kind is StepKind.RELABEL:
        return None
    together = step.before.with_axis(step.axis, Broadcast())
    placements = step.before, together, step.after
    # What the group holds together says whether it calls a collective at all.
    shapes = tuple(shard_shape(shape, p, mesh, coords) for p in placements)
    if is_uneven_exchange(shape, step, mesh):
        return shapes, Messages(shape, step, mesh, coords).key
    runs = shard_runs(shape, together, mesh, coords)
    cuts = tuple(
        _cut(runs[sharding.dim], sharding, mesh.sizes[step.axis], coords[step.axis])
        for sharding in (p.shardings[step.axis] for p in (step.before, step.after))
        if isinstance(sharding, Split)
    )
    return shapes, tuple(cut.key for cut in cuts)


@dataclass(frozen=True, slots=True)
class _Cut:
    """How one axis cuts one dim of what its ranks hold together.

    ``groups`` are ``(count, size)``: so many pieces of that size, each of which is
    chunked by itself into ``num`` chunks; the rank holds chunk ``index`` of each.
    """

    groups: tuple[tuple[int, int], ...]
    num: int
    index: int

    @property
    def is_even(self) -> bool:
        return all(size % self.num == 0 for _, size in self.groups)

    @property
    def key(self) -> object:
        """What tells it from others; of even chunks all are held alike."""
        return self.groups, None if self.is_even else self.index

    def padded(self, size: int) -> int:
        """Return the size of the largest chunk of a piece."""
        return -(-size // self.num)

    def own(self, size: int) -> int:
        """Return the size of the rank's own chunk of a piece."""
        start, stop = chunk(size, self.num, self.index)
        return stop - start


def _cut(runs: tuple[Run, ...], split: Split, num: int, index: int) -> _Cut:
    """Return how ``split`` cuts ``runs``, which earlier axes left of its dim."""
    cuts = [0]
    for size in split.segments:
        cuts.append(cuts[-1] + size)
    sizes: list[int] = []
    for start, stop in runs:
        inside = [start, *(cut for cut in cuts if start < cut < stop), stop]
        sizes += [high - low for low, high in pairwise(inside) if low < high]
    groups = tuple((len(list(same)), size) for size, same in groupby(sizes))
    return _Cut(groups or ((1, 0),), num, index)


class _StepLowering:
    """One step for one rank."""

    def __init__(
        self,
        graph: fx.Graph,
        type: TensorType,
        step: Step,
        mesh: Mesh,
        coords: tuple[int, ...],
        coordinate_nodes: tuple[fx.Node, ...],
    ) -> None:
        self.write = TensorWriter(graph)
        self.shape = type.shape
        self.dtype = type.dtype
        self.step = step
        self.mesh = mesh
        self.coords = coords
        self.coordinate = coordinate_nodes[step.axis]
        self.num = mesh.sizes[step.axis]
        self.together = step.before.with_axis(step.axis, Broadcast())
        self.runs = shard_runs(type.shape, self.together, mesh, coords)
        self.types: dict[fx.Node, TensorType] = {}

    def emit(self, node: fx.Node, group: str, enters: bool) -> fx.Node:
        """Write the step; return its result, laid out in order.

        A slice of what ``enters`` may be a view.
        """
        step, write = self.step, self.write
        x = local(node, shard_shape(self.shape, step.before, self.mesh, self.coords))
        after = shard_shape(self.shape, step.after, self.mesh, self.coords)
        if prod(shard_shape(self.shape, self.together, self.mesh, self.coords)) == 0:
            return write.zeros(x, after).node  # the ranks of the group have nothing
        old, new = step.before.shardings[step.axis], step.after.shardings[step.axis]
        match old, new:
            case Partial(), Broadcast():
                y = self._all_reduce(x, str(old.reduction), group)
            case Partial(), Split():
                y = self._reduce_scatter(x, new, str(old.reduction), group)
            case Split(), Broadcast():
                y = self._all_gather(x, old, group)
            case Split(), Split() if is_uneven_exchange(self.shape, step, self.mesh):
                y = self._exchange(x, group)
            case Split(), Split():
                y = self._all_to_all(x, old, new, group)
            case Broadcast(), Split():
                y = self._slice(x, new)
                if y.shape != x.shape and not enters:
                    y = write.copied(y)
            case Broadcast(), Partial():
                y = self._keep_first(x)
            case Split(), Partial():
                y = self._embed(x, old, new.reduction)
            case _:
                raise AssertionError(f"no lowering for {step}")
        assert y.shape == after, f"{step} at {self.coords} gave {y.shape}, not {after}"
        return write.node(write.contiguous(y))

    # --- steps that communicate ---------------------------------------------

    def _collective(
        self, op: Callable[..., object], x: Local, rows: int, *args: object
    ) -> Local:
        """Write a collective that returns ``rows`` rows, and the wait for it."""
        started = self.write.call(op, self.write.node(self.write.contiguous(x)), *args)
        return self._awaited(started, (rows, *x.shape[1:]))

    def _all_reduce(self, x: Local, reduction: str, group: str) -> Local:
        started = self.write.call(c10d.all_reduce.default, x.node, reduction, group)
        return self._awaited(started, x.shape)

    def _awaited(self, started: fx.Node, shape: tuple[int, ...]) -> Local:
        done = self.write.call(c10d.wait_tensor.default, started)
        self.types[started] = self.types[done] = TensorType(shape, self.dtype)
        return Local(done, shape, shape, contiguous=True)

    def _all_gather(self, x: Local, old: Split, group: str) -> Local:
        cut = self._cut(old)
        padded = self._pad_chunks(x, old.dim, cut)
        rows = self.num * padded.shape[0]
        gather = c10d.all_gather_into_tensor.default
        gathered = self._collective(gather, padded, rows, self.num, group)
        return self._join(gathered.viewed(self.num, *padded.shape), old.dim, cut)

    def _reduce_scatter(
        self, x: Local, new: Split, reduction: str, group: str
    ) -> Local:
        cut = self._cut(new)
        parts = self._divide(x, new.dim, cut)
        rows = parts.shape[1]
        flat = parts.viewed(self.num * rows, *parts.shape[2:])
        scatter = c10d.reduce_scatter_tensor.default
        padded = self._collective(scatter, flat, rows, reduction, self.num, group)
        return self._drop_padding(padded, new.dim, cut)

    def _all_to_all(self, x: Local, old: Split, new: Split, group: str) -> Local:
        parts = self._divide(x, new.dim, self._cut(new))
        rows = parts.shape[1]
        flat = parts.viewed(self.num * rows, *parts.shape[2:])
        sizes = [rows] * self.num
        exchange = c10d.all_to_all_single.default
        got = self._collective(exchange, flat, flat.shape[0], sizes, sizes, group)
        return self._join(got.viewed(*parts.shape), old.dim, self._cut(old))

    def _exchange(self, x: Local, group: str) -> Local:
        messages = Messages(self.shape, self.step, self.mesh, self.coords)
        sent, taken = messages.num_sent, messages.num_taken
        op = c10d.all_to_all_single.default
        flat = packed(self.write, messages, x)
        got = self._collective(op, flat, sum(taken), taken, sent, group)
        return unpacked(self.write, messages, got)

    # --- steps that do not --------------------------------------------------

    def _slice(self, x: Local, new: Split) -> Local:
        cut = self._cut(new)

        def take(part: Local, dim: int, size: int) -> Local:
            return self.write.slice(part, dim, self._start(cut, size), cut.own(size))

        return self._each_group(x, new.dim, cut, lambda size: size, take)

    def _embed(self, x: Local, old: Split, reduction: Reduction) -> Local:
        cut, neutral = self._cut(old), _neutral(reduction, self.dtype)

        def surround(part: Local, dim: int, size: int) -> Local:
            return self.write.pad(part, dim, self._start(cut, size), size, neutral)

        return self._each_group(x, old.dim, cut, cut.own, surround)

    def _keep_first(self, x: Local) -> Local:
        """Zeros instead of ``x`` on all but the first; a product would keep NaN."""
        write = self.write
        is_first = write.call(operator.eq, self.coordinate, 0)
        dtype = {"dtype": torch.bool}
        keep = write.call(aten.new_full.default, x.node, [], is_first, **dtype)
        zero = write.zeros(x, ())
        return local(write.call(aten.where.self, keep, x.node, zero.node), x.shape)

    # --- chunks of a dim ----------------------------------------------------

    def _cut(self, split: Split) -> _Cut:
        index = self.coords[self.step.axis]
        return _cut(self.runs[split.dim], split, self.num, index)

    def _start(self, cut: _Cut, size: int) -> Index:
        """Return where the rank's chunk of a piece starts."""
        if cut.is_even:
            return self.write.multiply(self.coordinate, size // self.num)
        return chunk(size, cut.num, cut.index)[0]

    def _each_group(
        self,
        x: Local,
        dim: int,
        cut: _Cut,
        size_in: Callable[[int], int],
        change: Callable[[Local, int, int], Local],
    ) -> Local:
        """Apply ``change(part, dim, piece size)`` to the pieces of each group.

        ``size_in(piece size)`` is what ``x`` has of a piece.
        """
        parts: list[Local] = []
        offset = 0
        for num_pieces, size in cut.groups:
            found = size_in(size)
            part = self.write.slice(x, dim, offset, num_pieces * found)
            offset += num_pieces * found
            if num_pieces == 1:
                parts.append(change(part, dim, size))
                continue
            before, after = x.shape[:dim], x.shape[dim + 1 :]
            changed = change(
                part.viewed(*before, num_pieces, found, *after), dim + 1, size
            )
            new_size = num_pieces * changed.shape[dim + 1]
            parts.append(changed.viewed(*before, new_size, *after))
        return self.write.cat(parts, dim)

    def _pad_chunks(self, x: Local, dim: int, cut: _Cut) -> Local:
        """Pad the rank's chunks to the largest, which the first rank holds."""

        def pad(part: Local, dim: int, size: int) -> Local:
            return self.write.pad(part, dim, 0, cut.padded(size))

        return self._each_group(x, dim, cut, cut.own, pad)

    def _drop_padding(self, x: Local, dim: int, cut: _Cut) -> Local:
        """Undo ``_pad_chunks``."""

        def trim(part: Local, dim: int, size: int) -> Local:
            return self.write.slice(part, dim, 0, cut.own(size))

        return self._each_group(x, dim, cut, cut.padded, trim)

    def _divide(self, x: Local, dim: int, cut: _Cut) -> Local:
        """Return ``[num, ...]``: for each rank its chunks of ``dim``, padded."""
        write = self.write
        before, after = x.shape[:dim], x.shape[dim + 1 :]
        parts: list[Local] = []
        offset = 0
        for num_pieces, size in cut.groups:
            part = write.slice(x, dim, offset, num_pieces * size)
            offset += num_pieces * size
            step = cut.padded(size)
            if size % self.num:
                part = part.viewed(*before, num_pieces, size, *after)
                part = write.pad(part, dim + 1, 0, self.num * step)
            part = part.viewed(*before, num_pieces, self.num, step, *after)
            part = write.move(part, dim + 1, 0)
            parts.append(part.viewed(self.num, *before, num_pieces * step, *after))
        return write.cat(parts, dim + 1)

    def _join(self, x: Local, dim: int, cut: _Cut) -> Local:
        """Undo ``_divide``: ``x`` is ``[num, ...]``, the chunks of each rank."""
        write = self.write
        before, after = x.shape[1 : dim + 1], x.shape[dim + 2 :]
        parts: list[Local] = []
        offset = 0
        for num_pieces, size in cut.groups:
            step = cut.padded(size)
            part = write.slice(x, dim + 1, offset, num_pieces * step)
            offset += num_pieces * step
            part = part.viewed(self.num, *before, num_pieces, step, *after)
            part = write.move(part, 0, dim + 1)
            part = part.viewed(*before, num_pieces, self.num * step, *after)
            if size % self.num:
                part = write.slice(part, dim + 1, 0, size)
            parts.append(part.viewed(*before, num_pieces * size, *after))
        return write.cat(parts, dim)


def _neutral(reduction: Reduction, dtype: torch.dtype) -> float | int | bool:
    """Return what leaves every other value as it is.

    >>> _neutral(Reduction.MAX, torch.float32), _neutral(Reduction.MIN, torch.uint8)
    (-inf, 255)
    """
    if reduction is Reduction.SUM:
        return 0
    is_max = reduction is Reduction.MAX
    if dtype == torch.bool:
        return not is_max
    if dtype.is_floating_point:
        return -inf if is_max else inf
    limits = torch.iinfo(dtype)
    return limits.min if is_max else limits.max
