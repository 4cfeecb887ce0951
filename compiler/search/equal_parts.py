"""What of a batch can be cut into equal parts, one for each microbatch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from partita.compiler.errors import BadOptions
from partita.compiler.ir.program import InputKind, InputRole, Program, Value, type_of
from partita.compiler.ir.sbp import Sharding, Split
from partita.compiler.ir.signature import AxisSignature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import Call


@dataclass(frozen=True, slots=True)
class EqualParts:
    """The parts of a program's batch: ``count`` of them."""

    program: Program
    count: int

    def check_inputs(self) -> None:
        """Check that an input can be cut.

        Raises:
            BadOptions: when none can.
        """
        if any(self.is_batch(*pair) for pair in self.program.placeholders()):
            return
        types = {
            role.name: type_of(Value(node, 0))
            for node, role in self.program.placeholders()
            if role.kind is InputKind.INPUT
        }
        found = ", ".join(f"{name} is {type_}" for name, type_ in types.items())
        raise BadOptions(
            f"microbatches is {self.count}, which cuts dim 0 of no input into so many "
            f"equal parts: {found or 'there are none'}; want a number that divides the "
            "batch, dim 0 of the inputs"
        )

    def is_batch(self, node: fx.Node, role: InputRole) -> bool:
        """Whether a placeholder is an input of which each has a part."""
        type_ = type_of(Value(node, 0))
        is_input = role.kind is InputKind.INPUT and type_.ndim > 0
        return is_input and self.is_even(type_, Split(0))

    def is_even(self, type_: TensorType, sharding: Sharding | None) -> bool:
        """Whether every microbatch has as much of a tensor."""
        if not isinstance(sharding, Split):
            return True
        sizes = sharding.segments or (type_.shape[sharding.dim],)
        return all(size > 0 and size % self.count == 0 for size in sizes)

    def is_equal_work(self, call: Call, signature: AxisSignature) -> bool:
        """Whether every microbatch has as much of all operands and results."""
        placed = [
            *zip(call.operands, signature.operands, strict=True),
            *zip(call.results, signature.results, strict=True),
        ]
        return all(t is None or self.is_even(t, sharding) for t, sharding in placed)
