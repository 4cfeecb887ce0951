"""Views of views are one view, or none where they undo each other.

Before   a = x.permute(1, 0);  b = a.permute(1, 0);  out = b.reshape(6).reshape(2, 3)
After    out = x.reshape(2, 3)                                                 x [3, 2]

A linear layer's backward transposes what its forward transposed, and its weight's
gradient twice. A view is no work, but each is a node that a search places; and what is
boxed behind a transposing view is copied first, to lie in order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from partita.compiler.ir.program import Program, operand_nodes, type_of, value_of

aten = torch.ops.aten

_RESHAPE, _PERMUTE = aten.reshape.default, aten.permute.default


def join_views(program: Program) -> None:
    """Make one view of chains of reshapes, and of chains of permutes, in place.

    A reshape of one that others use as well stays: it would be no fewer.
    """
    for node in list(program.graph.nodes):
        if node.target is _PERMUTE:
            _join_permute(node)
        elif node.target is _RESHAPE:
            _join_reshape(node)


def _join_permute(node: fx.Node) -> None:
    inner, order = _permuted(node)
    base = inner
    if inner.target is _PERMUTE:
        base, within = _permuted(inner)
        order = [within[dim] for dim in order]
        node.args = (base, order)
        _erase_unused(inner)
    if order == sorted(order):
        node.replace_all_uses_with(base)
        _erase_unused(node)


def _permuted(node: fx.Node) -> tuple[fx.Node, list[int]]:
    args: Any = node.args
    return args[0], [*args[1]]


def _join_reshape(node: fx.Node) -> None:
    (inner,) = operand_nodes(node)
    base = inner
    while base.target is _RESHAPE and _shape(base) != _shape(node):
        (base,) = operand_nodes(base)
    if _shape(base) == _shape(node):
        node.replace_all_uses_with(base)
        _erase_unused(node)
    elif inner.target is _RESHAPE and len(inner.users) == 1:
        node.args = (operand_nodes(inner)[0], *node.args[1:])
        _erase_unused(inner)


def _erase_unused(view: fx.Node) -> None:
    """Erase a view that nobody uses, and those that only it was made of."""
    while view.target in (_PERMUTE, _RESHAPE) and not view.users:
        (base,) = operand_nodes(view)
        view.graph.erase_node(view)
        view = base


def _shape(node: fx.Node) -> tuple[int, ...]:
    return type_of(value_of(node)).shape
