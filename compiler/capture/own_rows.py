"""What each row takes of itself is a gather: ``x[arange(n), index]``.

Before   out = x[arange(n), index]                x [n, m, ...], index [n, ...]
After    out = gather(x, dim 1, index)            index spread over what is behind

An index of rows may reach any row, so that no rank could do with its own. Where the
rows are counted, each takes of itself alone: a rank, or a microbatch, that has some of
the rows needs no others. A model that reads the last token of each sequence does so.
The backward, which adds to the places that were taken, is ``scatter_add`` alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import fx

from partita.compiler.capture.excerpt import Excerpt
from partita.compiler.ir.program import (
    NodeInfo,
    Program,
    info,
    set_info,
    type_of,
    value_of,
)
from partita.compiler.ir.tensor_type import TensorType

aten = torch.ops.aten

_NUMBERS = torch.int32, torch.int64

_MOST_COUNTED = 1 << 16
"""Longer positions are not looked at: they would have to be computed."""


def gather_own_rows(program: Program) -> None:
    """Write what takes of each row by itself as a gather, or its backward, in place."""
    for node in list(program.graph.nodes):
        if node.target is aten.index.Tensor:
            _gather(program, node)
        elif node.target is aten.index_put.default:
            _scatter(program, node)
    program.graph.eliminate_dead_code()


def _gather(program: Program, node: fx.Node) -> None:
    source, indices = node.args
    write = _Writer(node)
    index = _index_of(program, write, source, indices)
    if index is None:
        return
    (type_,) = info(node).types
    assert type_ is not None
    shape = type_of(value_of(index)).shape
    taken = TensorType(shape, type_.dtype)
    found = write.call(aten.gather.default, (source, 1, index), taken)
    write.end(aten.reshape.default, (found, list(type_.shape)))


def _scatter(program: Program, node: fx.Node) -> None:
    source, indices, values, *adds = node.args
    if adds != [True]:
        return
    write = _Writer(node)
    index = _index_of(program, write, source, indices)
    if index is None:
        return
    shape, given = type_of(value_of(index)).shape, _type(values)
    if given.numel != prod(shape):
        return  # values that are spread over several places
    type_ = TensorType(shape, given.dtype)
    rows = write.call(aten.reshape.default, (values, list(shape)), type_)
    write.end(aten.scatter_add.default, (source, 1, index, rows))


def _index_of(
    program: Program, write: _Writer, source: Any, indices: Any
) -> fx.Node | None:
    """Return an index ``[n, taken, ...]`` into dim 1; ``None`` where rows mix.

    It is spread over the dims of ``source`` behind that, and counts from the front.
    """
    if len(indices) != 2 or not all(isinstance(i, fx.Node) for i in indices):
        return None
    rows, taken = indices
    num, size, *behind = _type(source).shape
    if _type(rows).dtype not in _NUMBERS or _type(taken).dtype != torch.int64:
        return None  # a mask stands for as many rows as it is true for
    if not _type(taken).shape:
        return None
    together = torch.broadcast_shapes(_type(rows).shape, _type(taken).shape)
    if together[0] != num or not _counts(program, rows, together):
        return None
    shape = [num, prod(together[1:]), *behind]
    flags = TensorType(_type(taken).shape, torch.bool)
    is_behind = write.call(aten.lt.Scalar, (taken, 0), flags)
    ahead = write.call(aten.add.Tensor, (taken, size), _type(taken))
    found = write.call(aten.where.self, (is_behind, ahead, taken), _type(taken))
    if together != _type(taken).shape:
        found = write.shaped(aten.expand.default, found, together)
    if behind or len(together) != 2:
        flat = [*shape[:2], *(1 for _ in behind)]
        found = write.shaped(aten.reshape.default, found, flat)
    return write.shaped(aten.expand.default, found, shape) if behind else found


def _type(node: Any) -> TensorType:
    return type_of(value_of(node))


def _counts(program: Program, rows: fx.Node, together: Sequence[int]) -> bool:
    """Whether an index, spread over ``together``, is the number of its own row."""
    if _type(rows).numel > _MOST_COUNTED:
        return False
    excerpt = Excerpt.of(program, rows)
    if excerpt is None:
        return False
    counted = torch.arange(together[0]).reshape([-1, *(1 for _ in together[1:])])
    return torch.equal(excerpt().expand(together), counted.expand(together))


@dataclass
class _Writer:
    """Writes what stands for ``node``, before it, under keys of its own."""

    node: fx.Node
    count: int = 0

    @property
    def fact(self) -> NodeInfo:
        """What is known of the node."""
        return info(self.node)

    def call(self, op: Any, args: tuple[Any, ...], type_: TensorType) -> fx.Node:
        """Add a call whose one result is of ``type_``."""
        with self.node.graph.inserting_before(self.node):
            new = self.node.graph.call_function(op, args)
        key = f"{self.fact.key}/row{self.count}"
        self.count += 1
        set_info(new, replace(self.fact, key=key, types=(type_,)))
        return new

    def shaped(self, op: Any, x: fx.Node, shape: Sequence[int]) -> fx.Node:
        """Add a view of ``x`` of a shape."""
        type_ = TensorType(tuple(shape), _type(x).dtype)
        return self.call(op, (x, list(shape)), type_)

    def end(self, op: Any, args: tuple[Any, ...]) -> None:
        """Put a call in the place of the node; it has its key."""
        node = self.node
        with node.graph.inserting_before(node):
            new = node.graph.call_function(op, args)
        set_info(new, self.fact)
        node.replace_all_uses_with(new)
        node.graph.erase_node(node)
