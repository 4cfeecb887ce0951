"""Pack what an exchange of uneven shards sends, and put together what arrives.

Nothing is padded: a message holds the blocks that its receiver is to hold, flat, one
after another. A block is a run of indices of each dim that the exchange changes, and
all of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from partita.compiler.cost.step import Step, exchanged_runs
from partita.compiler.ir.layout import Run, shard_runs, shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Split
from partita.passes.local_tensors import Local, TensorWriter

_Block = tuple[Run, ...]


@dataclass(frozen=True)
class Messages:
    """What the rank at ``coords`` sends and takes in a step on a tensor."""

    shape: tuple[int, ...]
    step: Step
    mesh: Mesh
    coords: tuple[int, ...]

    @property
    def dims(self) -> tuple[int, ...]:
        """The dims that the exchange changes."""
        placements, axis = (self.step.before, self.step.after), self.step.axis
        splits = (placement.shardings[axis] for placement in placements)
        return tuple(sorted({s.dim for s in splits if isinstance(s, Split)}))

    @property
    def num_sent(self) -> list[int]:
        """The number of elements for each rank of the group."""
        return [self._numel(self._blocks(self.coords, at)) for at in self._group]

    @property
    def num_taken(self) -> list[int]:
        """The number of elements from each rank of the group."""
        return [self._numel(self._blocks(at, self.coords)) for at in self._group]

    @property
    def sent(self) -> list[tuple[tuple[int, int], ...]]:
        """Where each block sent starts in the shard, and its size, in every dim."""
        held = shard_runs(self.shape, self.step.before, self.mesh, self.coords)
        return [
            tuple(
                (_place(run, held[dim]), run[1] - run[0])
                for dim, run in zip(self.dims, block, strict=True)
            )
            for at in self._group
            for block in self._blocks(self.coords, at)
        ]

    @property
    def taken(self) -> list[_Block]:
        """The blocks that arrive, in their order."""
        return [block for at in self._group for block in self._blocks(at, self.coords)]

    @property
    def key(self) -> object:
        """What is equal where the messages are packed and put together alike."""
        dims = [sorted(set(runs)) for runs in zip(*self.taken, strict=True)]
        ordered = tuple(
            tuple(
                (runs.index((start, stop)), stop - start)
                for runs, (start, stop) in zip(dims, block, strict=True)
            )
            for block in self.taken
        )
        sizes = tuple(self.num_sent), tuple(self.num_taken)
        return sizes, tuple(self.sent), ordered

    def block_shape(self, block: _Block) -> tuple[int, ...]:
        """Return the shape of a block that is sent or taken."""
        shape = list(shard_shape(self.shape, self.step.before, self.mesh, self.coords))
        for dim, (start, stop) in zip(self.dims, block, strict=True):
            shape[dim] = stop - start
        return tuple(shape)

    def _blocks(
        self, sender: tuple[int, ...], receiver: tuple[int, ...]
    ) -> list[_Block]:
        runs = exchanged_runs(self.shape, self.step, self.mesh, sender, receiver)
        return list(product(*(runs[dim] for dim in self.dims)))

    def _numel(self, blocks: list[_Block]) -> int:
        return sum(prod(self.block_shape(block)) for block in blocks)

    @property
    def _group(self) -> list[tuple[int, ...]]:
        """The coordinates of the ranks that take part, in the group's order."""
        axis, coords = self.step.axis, self.coords
        size = self.mesh.sizes[axis]
        return [(*coords[:axis], at, *coords[axis + 1 :]) for at in range(size)]


def packed(write: TensorWriter, messages: Messages, x: Local) -> Local:
    """Return the messages that the shard ``x`` is cut into."""
    parts: list[Local] = []
    for block in messages.sent:
        part = x
        for dim, (start, size) in zip(messages.dims, block, strict=True):
            part = write.slice(part, dim, start, size)
        parts.append(part.viewed(prod(part.shape)))
    return write.cat(parts, 0) if parts else write.zeros(x, (0,))


def unpacked(write: TensorWriter, messages: Messages, got: Local) -> Local:
    """Return the new shard, of the messages that arrived."""
    parts: list[tuple[_Block, Local]] = []
    offset = 0
    for block in messages.taken:
        shape = messages.block_shape(block)
        part = write.slice(got, 0, offset, prod(shape))
        offset += prod(shape)
        parts.append((block, part.viewed(*shape)))
    if not parts:
        step, mesh, coords = messages.step, messages.mesh, messages.coords
        return write.zeros(got, shard_shape(messages.shape, step.after, mesh, coords))
    return _in_order(write, parts, messages.dims)


def _in_order(
    write: TensorWriter, parts: list[tuple[_Block, Local]], dims: tuple[int, ...]
) -> Local:
    """Put blocks together that fill a grid over ``dims``."""
    if not dims:
        ((_, part),) = parts
        return part
    rows: dict[Run, list[tuple[_Block, Local]]] = {}
    for block, part in sorted(parts, key=lambda found: found[0]):
        rows.setdefault(block[0], []).append((block[1:], part))
    joined = [_in_order(write, row, dims[1:]) for row in rows.values()]
    return write.cat(joined, dims[0])


def _place(run: Run, held: tuple[Run, ...]) -> int:
    """Return where ``run``, part of one of the runs ``held``, lies in the shard."""
    offset = 0
    for low, high in held:
        if low <= run[0] and run[1] <= high:
            return offset + run[0] - low
        offset += high - low
    raise AssertionError(f"{run} is not held: {held}")
