"""Products of rows that stand in the order of their groups (grouped.py).

On a GPU all groups are multiplied by torch's one kernel for them, and nobody waits to
be told how many rows a group has. Elsewhere, and where that kernel asks for another
layout, the groups are multiplied one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ALIGNED = 16  # bytes, what rows of the kernel's operands are multiples of


def order_of(member: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return how rows are put in the order of their groups.

    Args:
        member: whether row ``s`` is of group ``e``, of one at most: ``[s, e]``.

    Returns:
        The rows in order, those of no group last; where each row comes to stand; and
        where each group ends.
    """
    none = member.shape[1]
    group = torch.where(member.any(1), member.to(torch.uint8).argmax(1), none)
    order = group.argsort(stable=True)
    places = torch.arange(len(order), device=order.device)
    inverse = torch.empty_like(order).scatter_(0, order, places)
    return order, inverse, member.sum(0).cumsum(0).to(torch.int32)


group_order = torch.library.custom_op("partita::group_order", order_of, mutates_args=())


@group_order.register_fake
def _order_types(member: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    rows, groups = member.shape
    order = member.new_empty(rows, dtype=torch.int64)
    return order, torch.empty_like(order), member.new_empty(groups, dtype=torch.int32)


def multiply_in_order(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply each row of ``x`` by the matrix of its group; zeros if it has none.

    Args:
        x: rows in order ``[s, k]``.
        weight: a matrix for each group ``[e, k, n]``.
        ends: where each group ends ``[e]``.
    """
    if _has_kernel(x, weight):
        return multiply_by_kernel(x, weight, ends)
    out, begin = x.new_empty(x.shape[0], weight.shape[2]), 0
    for end, matrix in zip(ends.tolist(), weight.unbind(0), strict=True):
        torch.mm(x[begin:end], matrix, out=out[begin:end])
        begin = end
    out[begin:].zero_()
    return out


def multiply_by_kernel(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Compute ``multiply_in_order`` by the kernel for all groups at once."""
    made = nn.functional.grouped_mm(x, weight, offs=ends)
    # It leaves rows past the last group as they are.
    is_past = torch.arange(len(made), device=made.device) >= ends[-1]
    return made.masked_fill_(is_past.unsqueeze(1), 0.0)


sorted_multiply = torch.library.custom_op(
    "partita::sorted_multiply", multiply_in_order, mutates_args=()
)


@sorted_multiply.register_fake
def multiply_type(x: Tensor, weight: Tensor, groups: Tensor) -> Tensor:
    """Return what is made of groups ``[.., e]``, without values: ``[s, n]``."""
    return x.new_empty(x.shape[0], weight.shape[2])


def outer_in_order(x: Tensor, grad: Tensor, ends: Tensor) -> Tensor:
    """Return, per group, the product of its rows of ``x``, transposed, and ``grad``.

    Args:
        x: rows in order ``[s, k]``.
        grad: likewise ``[s, n]``.
        ends: where each group ends ``[e]``.
    """
    if _has_kernel(x, grad):
        return outer_by_kernel(x, grad, ends)
    out, begin = x.new_empty(len(ends), x.shape[1], grad.shape[1]), 0
    for end, made in zip(ends.tolist(), out.unbind(0), strict=True):
        torch.mm(x[begin:end].t(), grad[begin:end], out=made)  # zeros, of no rows
        begin = end
    return out


def outer_by_kernel(x: Tensor, grad: Tensor, ends: Tensor) -> Tensor:
    """Compute ``outer_in_order`` by the kernel for all groups at once."""
    return nn.functional.grouped_mm(x.t(), grad, offs=ends)


sorted_outer = torch.library.custom_op(
    "partita::sorted_outer", outer_in_order, mutates_args=()
)


@sorted_outer.register_fake
def outer_type(x: Tensor, grad: Tensor, groups: Tensor) -> Tensor:
    """Return what is made of groups ``[.., e]``, without values: ``[e, k, n]``."""
    return x.new_empty(groups.shape[-1], x.shape[1], grad.shape[1])


def _has_kernel(rows: Tensor, other: Tensor) -> bool:
    """Whether one kernel multiplies such tensors, however many rows groups have."""
    if not (rows.is_cuda and rows.dtype is torch.bfloat16):
        return False
    if not (rows.numel() and other.numel()):
        return False
    sizes = rows.shape[1], *other.shape[1:]
    is_dense = other[0].is_contiguous() or other[0].t().is_contiguous()
    is_even = all(size * rows.dtype.itemsize % _ALIGNED == 0 for size in sizes)
    starts = rows.data_ptr(), other.data_ptr()
    is_aligned = is_even and all(start % _ALIGNED == 0 for start in starts)
    return is_dense and is_aligned and rows.is_contiguous()
