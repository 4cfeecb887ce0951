"""Find by experiment what a call returns when its operands are placed so.

One mesh axis, the real op on real shards: operands are cut (or, partial, taken apart
into random summands), every rank's call is made, and each result is compared with what
every sharding would ask of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from partita.compiler.ir.layout import shard_runs
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import (
    Broadcast,
    Partial,
    Placement,
    Reduction,
    Sharding,
    Split,
)
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.agreement import agrees, scale_of, tolerance_of

Results = tuple[Tensor | None, ...]
Shapes = list[tuple[int, ...]]

Run = Callable[[tuple[Tensor, ...], Sequence[tuple[int, ...] | None]], Results]
"""Makes the call on tensors, given the shapes that its results ought to have."""

_JOIN = {
    Reduction.SUM: torch.add,
    Reduction.MAX: torch.maximum,
    Reduction.MIN: torch.minimum,
}

REFUSALS = (RuntimeError, IndexError, ValueError, TypeError, AssertionError)
"""What ops raise for shards that they do not take."""


def cut(tensor: Tensor, sharding: Sharding, num: int, rank: int) -> Tensor:
    """Return what a rank of an axis of ``num`` holds; ``tensor`` itself if not split.

    >>> cut(torch.arange(6), Split(0, (4, 2)), 2, 1)
    tensor([2, 3, 5])
    """
    if not isinstance(sharding, Split):
        return tensor
    shape = tuple(tensor.shape)
    runs = shard_runs(shape, Placement((sharding,)), Mesh(axis=num), (rank,))
    dim = sharding.dim
    parts = [tensor.narrow(dim, start, stop - start) for start, stop in runs[dim]]
    return torch.cat(parts, dim) if len(parts) > 1 else parts[0].clone()


def random(
    type_: TensorType,
    generator: torch.Generator,
    draw: int,
    high: int = 2,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Return random numbers of a type's shape; integers and booleans of its dtype.

    Args:
        type_: what is asked for.
        generator: where they come from.
        draw: which: of three draws one has normal numbers, one positive ones, and one
            numbers of any magnitude, so that what is linear near zero alone shows.
        high: integers are smaller.
        dtype: of floating numbers.
    """
    if not type_.dtype.is_floating_point:
        bound = 2 if type_.dtype == torch.bool else high
        numbers = torch.randint(0, bound, type_.shape, generator=generator)
        return numbers.to(type_.dtype)
    values = torch.randn(type_.shape, generator=generator, dtype=torch.float64)
    if draw % 3 == 1:
        values = values.abs() + 0.5
    elif draw % 3 == 2:
        exponents = torch.rand(type_.shape, generator=generator, dtype=torch.float64)
        values *= 10 ** (8 * exponents - 3)
    return values.to(dtype)


@dataclass
class Experiment:
    """One call on given tensors, and what it returns for them.

    Attributes:
        run: makes the call.
        tensors: its operands.
        seed: of the random summands of partial operands.
        want: its results.
    """

    run: Run
    tensors: tuple[Tensor, ...]
    seed: int = 0
    want: Results = field(init=False)

    def __post_init__(self) -> None:
        """Make the call."""
        self.want = self.run(self.tensors, ())
        shapes = [None if x is None else tuple(x.shape) for x in self.want]
        self._shapes: list[tuple[int, ...] | None] = shapes
        self._tolerance = tolerance_of((*self.tensors, *self.want))

    def results_of(
        self, operands: Sequence[Sharding], num: int, expected: Sharding | None = None
    ) -> list[Results] | None:
        """Return what each of ``num`` ranks returns; ``None`` if one of them fails.

        Args:
            operands: a sharding per operand.
            num: how many ranks the axis has.
            expected: of the results, for calls that state their shapes.
        """
        generator = torch.Generator().manual_seed(self.seed)
        per_operand = [
            self._shards(x, sharding, num, generator)
            for x, sharding in zip(self.tensors, operands, strict=True)
        ]
        found: list[Results] = []
        for rank in range(num):
            mine = tuple(shards[rank] for shards in per_operand)
            try:
                found.append(self.run(mine, self._local(expected, num, rank)))
            except REFUSALS:
                return None
        return found

    def _shards(
        self, x: Tensor, sharding: Sharding, num: int, generator: torch.Generator
    ) -> list[Tensor]:
        if isinstance(sharding, Partial):
            summands = [
                3 * torch.randn(x.shape, generator=generator, dtype=x.dtype)
                for _ in range(num - 1)
            ]
            return [x - sum(summands), *summands]
        return [cut(x, sharding, num, rank) for rank in range(num)]

    def _local(
        self, expected: Sharding | None, num: int, rank: int
    ) -> list[tuple[int, ...] | None]:
        if not isinstance(expected, Split):
            return self._shapes
        placement, mesh = Placement((expected,)), Mesh(axis=num)
        local: list[tuple[int, ...] | None] = []
        for shape in self._shapes:
            if shape is None or expected.dim >= len(shape):
                local.append(shape)
                continue
            runs = shard_runs(shape, placement, mesh, (rank,))
            local.append(tuple(sum(b - a for a, b in dim) for dim in runs))
        return local

    def holds(
        self, index: int, sharding: Sharding | None, found: Sequence[Results]
    ) -> bool:
        """Whether the ranks' results ``index`` are placed as ``sharding`` says.

        Args:
            index: which of the call's results.
            sharding: what is asked; ``None`` for a result that is no tensor.
            found: of each rank, all results.
        """
        want = self.want[index]
        shards = [results[index] for results in found]
        if want is None or sharding is None:
            return want is None and sharding is None
        if any(x is None or x.dtype != want.dtype for x in shards):
            return False
        tensors = [x for x in shards if x is not None]
        scale = scale_of((want, *tensors))
        if isinstance(sharding, Partial):
            if any(x.shape != want.shape for x in tensors):
                return False
            if want.dtype == torch.bool:
                return False
            joined, join = tensors[0], _JOIN[sharding.reduction]
            if want.is_complex() and sharding.reduction != Reduction.SUM:
                return False
            for x in tensors[1:]:
                joined = join(joined, x)
            return agrees(joined, want, self._tolerance, scale)
        for rank, x in enumerate(tensors):
            part = cut(want, sharding, len(tensors), rank)
            if x.shape != part.shape or not agrees(x, part, self._tolerance, scale):
                return False
        return True

    def shardings_of(
        self, index: int, found: Sequence[Results]
    ) -> tuple[Sharding | None, ...]:
        """Return every sharding of result ``index`` that holds, ``B`` first."""
        want = self.want[index]
        if want is None:
            return (None,)
        splits = [Split(dim) for dim, size in enumerate(want.shape) if size > 1]
        partials = [Partial(reduction) for reduction in Reduction]
        return tuple(
            s for s in (Broadcast(), *splits, *partials) if self.holds(index, s, found)
        )
