"""Products in which every row meets the matrix of its own group: mixtures of experts.

aten's ``_grouped_mm`` states where each group of rows ends, which says nothing about a
part of the rows or of the groups. These ops are told per row and group whether the two
belong together, so that all dims of the einsum can be split: rows over data, groups
over experts, the others as in any product. They also run in every dtype.

    multiply   out[s, n]       = sum over e, k of  member[s, e] x[s, k] weight[e, k, n]
    outer      out[e, k, n]    = sum over s of     member[s, e] x[s, k] grad[s, n]

A row is of one group at most. On a GPU the rows are brought in order for each product
(sorted_groups.py); elsewhere the groups are multiplied one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from partita.compiler.capture.sorted_groups import (
    multiply_in_order,
    multiply_type,
    order_of,
    outer_in_order,
    outer_type,
)

aten = torch.ops.aten


def multiply_groups(x: Tensor, weight: Tensor, member: Tensor) -> Tensor:
    """Multiply each row of ``x`` by the matrix of its group; zeros if it has none."""
    if x.is_cuda:
        order, inverse, ends, is_past = order_of(member)
        out = multiply_in_order(x[order], weight, ends)
        return out.masked_fill_(is_past, 0.0)[inverse]
    out = x.new_zeros(x.shape[0], weight.shape[2])
    for rows, matrix in zip(_rows_of(member), weight.unbind(0), strict=True):
        if rows.numel():
            out.index_add_(0, rows, x[rows] @ matrix)
    return out


multiply = torch.library.custom_op(
    "partita::grouped_multiply", multiply_groups, mutates_args=()
)
multiply.register_fake(multiply_type)


def outer_groups(x: Tensor, grad: Tensor, member: Tensor) -> Tensor:
    """Return, per group, the product of its rows of ``x``, transposed, and ``grad``."""
    if x.is_cuda:
        order, _, ends, _ = order_of(member)
        return outer_in_order(x[order], grad[order], ends)
    out = x.new_empty(member.shape[1], x.shape[1], grad.shape[1])
    for rows, made in zip(_rows_of(member), out.unbind(0), strict=True):
        torch.mm(x[rows].t(), grad[rows], out=made)  # zeros, of no rows
    return out


outer = torch.library.custom_op("partita::grouped_outer", outer_groups, mutates_args=())
outer.register_fake(outer_type)


def _rows_of(member: Tensor) -> list[Tensor]:
    """Return the rows of each group."""
    return [column.nonzero().squeeze(1) for column in member.unbind(1)]


def members(ends: Tensor, num_rows: int) -> Tensor:
    """Return whether row ``s`` is of group ``e``, where groups end at ``ends``.

    >>> members(torch.tensor([1, 1, 3]), 3).int().tolist()
    [[1, 0, 0], [0, 0, 1], [0, 0, 1]]
    """
    device = ends.device
    rows = torch.arange(num_rows, dtype=ends.dtype, device=device).unsqueeze(1)
    before = (rows >= ends).sum(1)  # groups that end before the row: its own number
    groups = torch.arange(ends.shape[0], dtype=before.dtype, device=device)
    return before.unsqueeze(1) == groups


def grouped_mm(
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute ``aten._grouped_mm``; ``offs`` are of the dim that is in no 3-D operand.

    That is the rows of ``a``, the columns of ``b``, or what the two contract.
    """
    if offs is None:
        out = torch.bmm(a, b)
    elif b.ndim == 3:
        out = multiply(a, b, members(offs, a.shape[0]))
    elif a.ndim == 3:
        member = members(offs, b.shape[1])
        out = multiply(b.t(), a.transpose(1, 2), member).t()
    else:
        out = outer(a.t(), b, members(offs, a.shape[1]))
    out = out if bias is None else out + bias
    return out if out_dtype is None else out.to(out_dtype)


def _looped(x: Tensor, weight: Tensor, offs: Tensor) -> Tensor:
    return grouped_mm(x, weight, offs)


def _looped_backward(
    x: Tensor, weight: Tensor, offs: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    return (
        grouped_mm(grad, weight.transpose(1, 2), offs),
        grouped_mm(x.t(), grad, offs),
    )


_OF_OTHERS: dict[str, Callable[..., Any]] = {
    "transformers::grouped_mm_fallback": _looped,
    "transformers::grouped_mm_fallback_backward": _looped_backward,
}
"""The same product where a library has it as an op of its own."""


def grouped_products() -> dict[Any, Callable[..., Any]]:
    """Return what each op that multiplies groups is taken apart into."""
    found: dict[Any, Callable[..., Any]] = {aten._grouped_mm.default: grouped_mm}
    for name, function in _OF_OTHERS.items():
        namespace, op = name.split("::")
        packet = getattr(getattr(torch.ops, namespace), op, None)
        if packet is not None:  # there once its library has been imported
            found[packet.default] = function
    return found
