"""One rank's call of an op: what a kernel is given and what it makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from partita.compiler.cost.layouts import Strides, is_in_order
from partita.compiler.ir.sbp import Placement, Split
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.printed_call import find_op, read_arguments


@dataclass(frozen=True, slots=True)
class LocalCall:
    """One rank's call of an op.

    Attributes:
        op: its name.
        operands: the type of each, and its strides.
        results: their types.
        device: ``cpu`` or ``cuda``.
        constants: printed as in a plan.
        placements: of the operands, none where they are whole.
        sizes: of the mesh's axes.
    """

    op: str
    operands: Sequence[tuple[TensorType, Strides]]
    results: Sequence[TensorType]
    device: str
    constants: Sequence[str] = ()
    placements: Sequence[Placement] = ()
    sizes: Sequence[int] = ()

    @property
    def types(self) -> list[TensorType]:
        """The operands' types."""
        return [type_ for type_, _ in self.operands]

    def is_in_order(self, operand: int) -> bool:
        """Whether torch calls an operand contiguous."""
        return is_in_order(*self.operands[operand])

    def ways(self, operand: int, dim: int) -> int:
        """Return how many ways a dim of an operand is split."""
        if not self.placements:
            return 1
        placed = zip(self.placements[operand].shardings, self.sizes, strict=True)
        return prod(
            size
            for sharding, size in placed
            if isinstance(sharding, Split) and sharding.dim == dim
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The positional arguments, operands as their types; none if not readable."""
        try:
            return read_arguments(find_op(self.op), self.constants, self.types)[0]
        except ValueError:  # the plan is no good, which is told elsewhere
            return ()

    @property
    def result_bytes(self) -> int:
        """The bytes of all results."""
        return sum(type_.num_bytes for type_ in self.results)
