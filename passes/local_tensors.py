"""Write aten ops on one rank's tensors into an fx graph, shapes known.

What would do nothing writes nothing: whole slices, empty pads, permutations that move
only dims of size 1, and reshapes that another reshape undoes (a reshape is written
only when another op needs it).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx

aten = torch.ops.aten

Index = int | fx.Node
"""An index that is known, or that a node computes from the rank's coordinates."""


@dataclass(frozen=True, slots=True)
class Local:
    """A tensor of one rank: ``node`` makes it in shape ``made``, seen as ``shape``.

    ``contiguous`` says that it is known to be; pads and cats may not be, for they
    keep a channels-last layout.
    """

    node: fx.Node
    made: tuple[int, ...]
    shape: tuple[int, ...]
    contiguous: bool = False

    def viewed(self, *shape: int) -> Local:
        """Return this tensor seen in another shape."""
        assert prod(shape) == prod(self.shape), f"{self.shape} cannot become {shape}"
        return Local(self.node, self.made, shape, self.contiguous)


def local(node: fx.Node, shape: Sequence[int]) -> Local:
    """Return the tensor that ``node`` makes, of which only the shape is known."""
    return Local(node, tuple(shape), tuple(shape))


@dataclass(frozen=True, slots=True)
class TensorWriter:
    """Writes ops at the insertion point of ``graph``."""

    graph: fx.Graph

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Write one call."""
        return self.graph.call_function(target, args, kwargs)

    def node(self, x: Local) -> fx.Node:
        """Return a node that makes ``x`` in the shape in which it is seen."""
        if x.made == x.shape:
            return x.node
        return self.call(aten.reshape.default, x.node, list(x.shape))

    def contiguous(self, x: Local) -> Local:
        """Return ``x`` laid out in order."""
        if x.contiguous:
            return x
        node = self.call(aten.contiguous.default, self.node(x))
        return Local(node, x.shape, x.shape, contiguous=True)

    def copied(self, x: Local) -> Local:
        """Return ``x`` in memory of its own, laid out in order."""
        form = torch.contiguous_format
        node = self.call(aten.clone.default, self.node(x), memory_format=form)
        return Local(node, x.shape, x.shape, contiguous=True)

    def slice(self, x: Local, dim: int, start: Index, size: int) -> Local:
        """Return ``size`` indices of ``dim`` from ``start`` on."""
        if size == x.shape[dim]:
            return x
        stop = start + size if isinstance(start, int) else self.add(start, size)
        node = self.call(aten.slice.Tensor, self.node(x), dim, start, stop)
        return local(node, (*x.shape[:dim], size, *x.shape[dim + 1 :]))

    def pad(
        self, x: Local, dim: int, start: Index, size: int, value: float = 0
    ) -> Local:
        """Return ``value`` of ``size`` along ``dim`` with ``x`` in it at ``start``."""
        if size == x.shape[dim]:
            return x
        room = size - x.shape[dim]
        stop = room - start if isinstance(start, int) else self.subtract(room, start)
        # amounts are listed from the last dim on, two a dim
        amounts = [0, 0] * (len(x.shape) - dim - 1) + [start, stop]
        values = (value,) if value else ()
        node = self.call(aten.constant_pad_nd.default, self.node(x), amounts, *values)
        return local(node, (*x.shape[:dim], size, *x.shape[dim + 1 :]))

    def permute(self, x: Local, dims: Sequence[int]) -> Local:
        """Return ``x`` with its dims in the order ``dims``."""
        shape = tuple(x.shape[dim] for dim in dims)
        moved = [dim for dim in dims if x.shape[dim] != 1]
        if moved == sorted(moved):
            return x.viewed(*shape)
        return local(self.call(aten.permute.default, self.node(x), list(dims)), shape)

    def move(self, x: Local, old: int, new: int) -> Local:
        """Return ``x`` with dim ``old`` standing at ``new``."""
        dims = [dim for dim in range(len(x.shape)) if dim != old]
        dims.insert(new, old)
        return self.permute(x, dims)

    def cat(self, parts: Sequence[Local], dim: int) -> Local:
        """Return ``parts`` one after another along ``dim``."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0].shape
        size = sum(part.shape[dim] for part in parts)
        node = self.call(aten.cat.default, [self.node(part) for part in parts], dim)
        return local(node, (*first[:dim], size, *first[dim + 1 :]))

    def zeros(self, like: Local, shape: Sequence[int]) -> Local:
        """Return zeros of another shape, of the dtype and on the device of ``like``."""
        node = self.call(aten.new_zeros.default, like.node, list(shape))
        return Local(node, tuple(shape), tuple(shape), contiguous=True)

    def multiply(self, index: fx.Node, factor: int) -> Index:
        """Return ``index * factor``."""
        return self.call(operator.mul, index, factor)

    def add(self, index: fx.Node, amount: int) -> Index:
        """Return ``index + amount``."""
        return self.call(operator.add, index, amount)

    def subtract(self, amount: int, index: fx.Node) -> Index:
        """Return ``amount - index``."""
        return self.call(operator.sub, amount, index)
