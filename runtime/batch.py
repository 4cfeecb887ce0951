"""Check a global batch against the example that the program was planned with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from partita.compiler.errors import BadBatch
from partita.compiler.ir.tensor_type import TensorType

_SHOWN = 80  # characters of a value in a message

Flatten = Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, Any]]
"""From (args, kwargs) of a call to its leaves by name."""


@dataclass(frozen=True)
class BatchSpec:
    """How a call's arguments are named, and what the example's were.

    ``leaves`` holds the type of a tensor, the value itself of anything else.
    """

    flatten: Flatten
    leaves: Mapping[str, Any]

    def read(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, torch.Tensor]:
        """Return the tensors of a batch by name.

        Raises:
            BadBatch: naming the first input that is not as in the example.
        """
        found = self.flatten(args, kwargs)
        for name in found:
            if name not in self.leaves:
                names = ", ".join(self.leaves)
                raise BadBatch(f"batch: found input {name!r}; want {names}")
        tensors: dict[str, torch.Tensor] = {}
        for name, want in self.leaves.items():
            if name not in found:
                raise BadBatch(f"batch: input {name!r} is missing; want {_show(want)}")
            leaf = found[name]
            if isinstance(want, TensorType):
                if _type_of(leaf) != want:
                    raise BadBatch(
                        f"batch: input {name!r} is {_show(leaf)}; want {want}, the "
                        "whole batch of all ranks, as in the plan's example"
                    )
                tensors[name] = leaf
            elif isinstance(leaf, torch.Tensor) or not _equal(leaf, want):
                raise BadBatch(
                    f"batch: input {name!r} is {_show(leaf)}; want {_show(want)}, as "
                    "in the plan's example"
                )
        return tensors


def _type_of(leaf: object) -> TensorType | None:
    """Return the type of a tensor that has all of its values here."""
    if not isinstance(leaf, torch.Tensor) or _without(leaf):
        return None
    return TensorType(tuple(leaf.shape), leaf.dtype)


def _without(leaf: torch.Tensor) -> str:
    """Return why a tensor has not all of its values; "" where it has."""
    if leaf.layout is not torch.strided:
        return f" ({str(leaf.layout).removeprefix('torch.')})"
    return " (on the meta device)" if leaf.is_meta else ""


def _equal(found: object, want: object) -> bool:
    """Whether two constants are one to a program: ``True`` is not 1."""
    return type(found) is type(want) and (found == want or found is want)


def _show(leaf: object) -> str:
    if isinstance(leaf, TensorType):
        return str(leaf)
    if isinstance(leaf, torch.Tensor):
        return f"{TensorType(tuple(leaf.shape), leaf.dtype)}{_without(leaf)}"
    text = repr(leaf)
    is_short = len(text) <= _SHOWN and "\n" not in text
    return text if is_short else f"of type {type(leaf).__name__}"
