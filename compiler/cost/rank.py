"""What one rank's calls make: the shards of their results, and how those lie in memory.

Equal layers make equal calls, so each is looked at once; shards that are alike are one
object, by which the next call is told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from partita.compiler.cost.layouts import Strides, in_order, is_in_order, lay_out
from partita.compiler.cost.local_call import LocalCall
from partita.compiler.cost.workspace import (
    is_pointwise,
    workspace_bytes,
)
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Node

CUDA_BLOCK = 512
"""Bytes that CUDA's caching allocator rounds up to (c10/cuda/CUDACachingAllocator)."""


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """How one rank's tensor lies in memory: its local type and strides."""

    type: TensorType
    strides: Strides

    @property
    def is_in_order(self) -> bool:
        """Whether torch calls it contiguous."""
        return is_in_order(self.type, self.strides)


class Result(NamedTuple):
    """One result of a call: its position, how it lies, the memory that it takes.

    ``operand`` is the one whose memory it shares, if any.
    """

    position: int
    shard: Shard
    num_bytes: int
    operand: int | None


class Made(NamedTuple):
    """What a call makes, and the memory that its kernel takes besides.

    ``is_view`` says whether all that it makes lies in its operands' memory.
    """

    results: tuple[Result, ...]
    workspace_bytes: int
    is_view: bool


@dataclass(frozen=True, slots=True)
class Rank:
    """The rank at ``coordinates`` of a mesh of ``device``s, and what it made so far."""

    mesh: Mesh
    coordinates: tuple[int, ...]
    device: str
    _shards: dict[tuple[TensorType, Strides], Shard] = field(
        default_factory=dict[tuple[TensorType, Strides], Shard]
    )
    _made: dict[object, Made] = field(default_factory=dict[object, Made])
    _same: dict[tuple[object, ...], tuple[Made, tuple[object, ...]]] = field(
        default_factory=dict[tuple[object, ...], tuple[Made, tuple[object, ...]]]
    )

    def type(self, logical: TensorType, placement: Placement) -> TensorType:
        """Return the type of the rank's part of a tensor."""
        shape = shard_shape(logical.shape, placement, self.mesh, self.coordinates)
        return TensorType(shape, logical.dtype)

    def shard(self, type_: TensorType, strides: Strides | None = None) -> Shard:
        """Return how a tensor of a local type lies; in order, unless told otherwise."""
        lies = type_, in_order(type_).strides if strides is None else strides
        found = self._shards.get(lies)
        if found is None:
            found = self._shards[lies] = Shard(*lies)
        return found

    def made(self, node: Node, given: Sequence[Shard], is_fused: bool = False) -> Made:
        """Return what the rank's part of a call makes of such operands.

        ``is_fused`` where it is one of several calls of one kernel.
        """
        constants, types, signature = node.constants, node.types, node.signature
        own = id(constants), id(types), id(signature)
        ids = node.op, is_fused, *own, *map(id, given)
        same = self._same.get(ids)
        if same is None:
            says = constants, types, signature
            key = node.op, is_fused, *says, *map(id, given)
            made = self._made.get(key)
            if made is None:
                made = self._made[key] = self._make(node, given, is_fused)
            same = self._same[ids] = made, says  # which keep their ids so
        return same[0]

    def _make(self, node: Node, given: Sequence[Shard], is_fused: bool) -> Made:
        types = tuple(
            None if t is None or placement is None else self.type(t, placement)
            for t, placement in zip(node.types, node.signature.results, strict=True)
        )
        operands = tuple((x.type, x.strides) for x in given)
        laid = lay_out(node.op, node.constants, operands, types)
        results = tuple(
            Result(i, self.shard(t, x.strides), self.rounded(x.num_bytes), x.operand)
            for i, (t, x) in enumerate(zip(types, laid, strict=True))
            if t is not None and x is not None
        )
        made = [type_ for type_ in types if type_ is not None]
        workspace = 0
        if not (is_fused and is_pointwise(node.op)):  # one kernel casts as it reads
            call = LocalCall(
                node.op,
                operands,
                made,
                self.device,
                node.constants,
                node.signature.operands,
                self.mesh.sizes,
            )
            workspace = workspace_bytes(call)
        is_view = all(result.operand is not None for result in results)
        return Made(results, self.rounded(workspace), is_view)

    def rounded(self, num_bytes: int) -> int:
        """Return what the device's allocator takes for so many bytes."""
        block = CUDA_BLOCK if self.device == "cuda" else 1
        return -(-num_bytes // block) * block
