"""Pack what an exchange of uneven shards sends, and put together what arrives.

Nothing is padded: a message holds the blocks that its receiver is to hold, flat, one
after another. A block is a run of indices of each dim that the exchange changes, and
all of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, product
from math import prod

from partita.compiler.cost.step import Step, exchanged_runs
from partita.compiler.ir.layout import Run, shard_runs, shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Split
from partita.passes.local_tensors import Local, TensorWriter

_Block = tuple[Run, ...]


@dataclass(frozen=True)
class UnevenExchange:
    """The messages of the rank at ``coords`` in a step on a tensor of logical shape."""

    write: TensorWriter
    shape: tuple[int, ...]
    step: Step
    mesh: Mesh
    coords: tuple[int, ...]

    @property
    def num_sent(self) -> list[int]:
        """The number of elements for each rank of the group."""
        return [self._numel(self._blocks(self.coords, at)) for at in self._group]

    @property
    def num_taken(self) -> list[int]:
        """The number of elements from each rank of the group."""
        return [self._numel(self._blocks(at, self.coords)) for at in self._group]

    def packed(self, x: Local) -> Local:
        """Return the messages that the shard ``x`` is cut into."""
        held = shard_runs(self.shape, self.step.before, self.mesh, self.coords)
        parts: list[Local] = []
        for block in chain(*(self._blocks(self.coords, at) for at in self._group)):
            part = x
            for dim, run in zip(self._dims, block, strict=True):
                start = _place(run, held[dim])
                part = self.write.slice(part, dim, start, run[1] - run[0])
            parts.append(part.viewed(prod(part.shape)))
        return self.write.cat(parts, 0) if parts else self.write.zeros(x, (0,))

    def unpacked(self, messages: Local) -> Local:
        """Return the new shard."""
        parts: list[tuple[_Block, Local]] = []
        offset = 0
        for block in chain(*(self._blocks(at, self.coords) for at in self._group)):
            shape = self._block_shape(block)
            part = self.write.slice(messages, 0, offset, prod(shape))
            offset += prod(shape)
            parts.append((block, part.viewed(*shape)))
        if not parts:
            after = shard_shape(self.shape, self.step.after, self.mesh, self.coords)
            return self.write.zeros(messages, after)
        return self._in_order(parts, self._dims)

    def _in_order(
        self, parts: list[tuple[_Block, Local]], dims: tuple[int, ...]
    ) -> Local:
        """Put blocks together that fill a grid over ``dims``."""
        if not dims:
            ((_, part),) = parts
            return part
        rows: dict[Run, list[tuple[_Block, Local]]] = {}
        for block, part in sorted(parts, key=lambda found: found[0]):
            rows.setdefault(block[0], []).append((block[1:], part))
        joined = [self._in_order(row, dims[1:]) for row in rows.values()]
        return self.write.cat(joined, dims[0])

    def _blocks(
        self, sender: tuple[int, ...], receiver: tuple[int, ...]
    ) -> list[_Block]:
        runs = exchanged_runs(self.shape, self.step, self.mesh, sender, receiver)
        return list(product(*(runs[dim] for dim in self._dims)))

    def _block_shape(self, block: _Block) -> tuple[int, ...]:
        shape = list(shard_shape(self.shape, self.step.before, self.mesh, self.coords))
        for dim, (start, stop) in zip(self._dims, block, strict=True):
            shape[dim] = stop - start
        return tuple(shape)

    def _numel(self, blocks: list[_Block]) -> int:
        return sum(prod(self._block_shape(block)) for block in blocks)

    @property
    def _dims(self) -> tuple[int, ...]:
        """The dims that the exchange changes."""
        placements, axis = (self.step.before, self.step.after), self.step.axis
        splits = (placement.shardings[axis] for placement in placements)
        return tuple(sorted({s.dim for s in splits if isinstance(s, Split)}))

    @property
    def _group(self) -> list[tuple[int, ...]]:
        """The coordinates of the ranks that take part, in the group's order."""
        axis, coords = self.step.axis, self.coords
        size = self.mesh.sizes[axis]
        return [(*coords[:axis], at, *coords[axis + 1 :]) for at in range(size)]


def _place(run: Run, held: tuple[Run, ...]) -> int:
    """Return where ``run``, part of one of the runs ``held``, lies in the shard."""
    offset = 0
    for low, high in held:
        if low <= run[0] and run[1] <= high:
            return offset + run[0] - low
        offset += high - low
    raise AssertionError(f"{run} is not held: {held}")
