"""What is taken apart along a dim and joined again is what it was.

Before   a = x[0:4], b = x[4:8];  out = cat([a.reshape(8), b.reshape(8)])      x [8, 2]
After    out = x.reshape(16)

A list of a batch's samples, joined, is made so: no rank or microbatch could have a part
of pieces of one sample each.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from partita.compiler.ir.program import Program, info, operand_nodes, type_of, value_of

aten = torch.ops.aten


def join_pieces(program: Program) -> None:
    """Replace what joins all pieces of a tensor by that tensor, in place."""
    for node in list(program.graph.nodes):
        if node.target is aten.cat.default:
            _join(node)
    program.graph.eliminate_dead_code()


def _join(node: fx.Node) -> None:
    dim = int(node.args[1]) if len(node.args) > 1 else 0  # type: ignore[arg-type]
    pieces = [_piece(part) for part in operand_nodes(node)]
    first = pieces[0]
    if first is None:
        return
    source, cut, _, _ = first
    whole, end = _shape(source), 0
    for part, piece in zip(operand_nodes(node), pieces, strict=True):
        if piece is None or dim != cut or piece[:3] != (source, cut, end):
            return
        *_, stop = piece
        if cut and _shape(part) != (*whole[:cut], stop - end, *whole[cut + 1 :]):
            return  # of another shape, it lies in a row only along the first dim
        end = stop
    if end != whole[cut]:
        return
    (type_,) = info(node).types
    assert type_ is not None
    if type_of(value_of(source)).dtype != type_.dtype:
        return
    if whole == type_.shape:
        node.replace_all_uses_with(source)
        return
    node.target = aten.reshape.default
    node.args, node.kwargs = (source, list(type_.shape)), {}


def _shape(node: fx.Node) -> tuple[int, ...]:
    return type_of(value_of(node)).shape


def _piece(node: fx.Node) -> tuple[fx.Node, int, int, int] | None:
    """Return of what tensor, along which dim, from where to where ``node`` is a piece.

    It may have been given another shape.
    """
    while node.target is aten.reshape.default:
        (node,) = operand_nodes(node)
    args: Any = node.args
    if node.target is aten.slice.Tensor:
        source, dim, start, stop, step = args
        return (source, dim, start, stop) if step == 1 else None
    if node.target is operator.getitem and isinstance(args[0], fx.Node):
        split, index = args
        if split.target is aten.split_with_sizes.default:
            source, sizes, dim = split.args
            start = sum(sizes[:index])
            return source, dim, start, start + sizes[index]
    return None
