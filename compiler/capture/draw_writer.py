"""What takes the place of an op that draws is written call by call."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from partita.compiler.capture.random_numbers import stream_of
from partita.compiler.ir.program import info, set_info, type_of, value_of
from partita.compiler.ir.tensor_type import TensorType

aten = torch.ops.aten


class DrawWriter:
    """Writes the nodes that take the place of one op that draws."""

    def __init__(self, node: fx.Node, seed: fx.Node) -> None:
        self.node = node
        self.seed = seed
        self.fact = info(node)
        self.count = 0

    def call(
        self, op: Any, args: tuple[Any, ...], type_: TensorType, **kwargs: Any
    ) -> fx.Node:
        """Add a call whose one result is of ``type_``."""
        return self._add(op, args, kwargs, type_)

    def item(
        self,
        op: Any,
        args: tuple[Any, ...],
        types: tuple[TensorType, ...],
        index: int,
        **kwargs: Any,
    ) -> fx.Node:
        """Add a call of several results, and return one of them."""
        made = self._add(op, args, kwargs, *types)
        new = self.node.graph.call_function(operator.getitem, (made, index))
        new.meta = {}
        return new

    def _add(
        self,
        op: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *types: TensorType,
    ) -> fx.Node:
        new = self.node.graph.call_function(op, args, kwargs)
        key = f"{self.fact.key}/draw{self.count}"
        self.count += 1
        set_info(new, replace(self.fact, key=key, types=types))
        return new

    def numbers(self, shape: Sequence[int], kind: str) -> fx.Node:
        """Draw numbers of a logical shape."""
        device = torch.device("cpu")
        indices = [
            self.call(
                aten.arange.default,
                (size,),
                TensorType((size,), torch.int64),
                dtype=torch.int64,
                device=device,
            )
            for size in shape
        ]
        dtype = torch.int64 if kind == "bits" else torch.float32
        stream = stream_of(self.fact.key)
        args = (self.seed, indices, list(shape), stream, kind)
        op = torch.ops.partita.random.default
        return self.call(op, args, TensorType(tuple(shape), dtype))

    def cast(self, value: fx.Node, dtype: torch.dtype) -> fx.Node:
        """Convert a value to ``dtype``.

        Written even where nothing changes: in a program in double precision this is
        where the numbers, which are drawn in single, become doubles.
        """
        type_ = type_of(value_of(value))
        wanted = TensorType(type_.shape, dtype)
        return self.call(aten._to_copy.default, (value,), wanted, dtype=dtype)

    def scaled(self, value: fx.Node, factor: float, shift: float) -> fx.Node:
        """Return value * factor + shift."""
        type_ = type_of(value_of(value))
        if factor != 1.0:
            value = self.call(aten.mul.Tensor, (value, factor), type_)
        if shift != 0.0:
            value = self.call(aten.add.Tensor, (value, shift), type_)
        return value


def argument_of(node: fx.Node, position: int, name: str, default: Any) -> Any:
    """Return an argument of a call, given by position or by name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)
