"""Products of rows that stand in the order of their groups (grouped.py).

On a GPU all groups are multiplied by torch's one kernel for them, and nobody waits to
be told how many rows a group has. Elsewhere, and where that kernel asks for another
layout, the groups are multiplied one by one.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ALIGNED = 16  # bytes, what rows of the kernel's operands are multiples of
_MOST = 255  # groups that a byte tells apart, and none


def order_of(member: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return how rows are put in the order of their groups.

    Args:
        member: whether row ``s`` is of group ``e``, of one at most: ``[s, e]``.

    Returns:
        The rows in order, those of no group last; where each row comes to stand; where
        each group ends; and whether a row, in order, is of none ``[s, 1]``.
    """
    rows, none = member.shape
    # What is sorted is as narrow as can be: a GPU passes over the rows once a byte.
    narrow = torch.uint8 if none <= _MOST else torch.int32
    before = torch.arange(-none, 0, device=member.device)
    group = (member * before).sum(1) + none
    order = group.to(narrow).argsort(stable=True)
    places = torch.arange(rows, device=order.device)
    inverse = torch.empty_like(order).scatter_(0, order, places)
    ends = member.sum(0, dtype=torch.int32).cumsum(0, dtype=torch.int32)
    is_past = (places >= ends[-1]).unsqueeze(1)
    return order, inverse, ends, is_past


def multiply_in_order(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply each row of ``x`` by the matrix of its group.

    What is made of rows past the last group is anything, not numbers even.

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
    return out


def multiply_by_kernel(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Compute ``multiply_in_order`` by the kernel for all groups at once."""
    return nn.functional.grouped_mm(x, weight, offs=ends)


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


def fits_kernel(rows: Tensor, other: Tensor) -> bool:
    """Whether one kernel multiplies tensors of these types, however groups end.

    Args:
        rows: in order ``[s, k]``.
        other: a matrix for each group ``[e, k, n]``, or rows ``[s, n]``.
    """
    if not (rows.is_cuda and rows.dtype is torch.bfloat16):
        return False
    if not (rows.numel() and other.numel()):
        return False
    matrix = other[0] if other.ndim == 3 else other
    sizes = rows.shape[1], *other.shape[1:], other.stride(0)
    starts = rows.storage_offset(), other.storage_offset()
    is_even = all(n * rows.dtype.itemsize % _ALIGNED == 0 for n in (*sizes, *starts))
    is_dense = matrix.is_contiguous() or matrix.t().is_contiguous()
    return is_even and is_dense and rows.is_contiguous()


def _has_kernel(rows: Tensor, other: Tensor) -> bool:
    """Whether one kernel multiplies such tensors, which lie where they lie."""
    if not fits_kernel(rows, other):
        return False
    return all(x.data_ptr() % _ALIGNED == 0 for x in (rows, other))
