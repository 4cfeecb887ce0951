"""The example inputs of a plan, without their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from partita.compiler.ir.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class InputLeaf:
    """A tensor or a constant (plain JSON) among a call's arguments, by its name."""

    name: str
    tensor: TensorType | None = None
    constant: Any = None


@dataclass(frozen=True, slots=True)
class InputSpec:
    """The example inputs without their values; inputs.py makes it from capture's.

    ``tree`` is torch's JSON form of the pytree (args, kwargs) of the ``leaves``.
    """

    leaves: tuple[InputLeaf, ...]
    tree: Any

    @property
    def tensors(self) -> dict[str, TensorType]:
        """The types of the tensors, by name."""
        return {leaf.name: leaf.tensor for leaf in self.leaves if leaf.tensor}
