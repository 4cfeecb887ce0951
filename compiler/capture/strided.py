"""``as_strided`` without strides: a shard's are not those of the whole tensor.

While tracing the strides are known, so that what the op reads, in the order in which
the tensor lies in memory, can be said in logical terms: mostly a reshape, else a gather
from the flattened tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _order(x: Tensor) -> list[int] | None:
    """Return the dims as they lie in memory, outermost first.

    ``None`` where the tensor does not fill its memory once.
    """
    if x.storage_offset() != 0:
        return None
    strides = x.stride()
    order = sorted(range(x.ndim), key=lambda dim: (-strides[dim], dim))
    expected = 1
    for dim in reversed(order):
        if x.shape[dim] > 1 and strides[dim] != expected:
            return None
        expected *= x.shape[dim]
    return order


def _is_contiguous(size: Sequence[int], stride: Sequence[int]) -> bool:
    expected = 1
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if length > 1 and step != expected:
            return False
        expected *= length
    return True


def _positions(size: Sequence[int], stride: Sequence[int], start: int, x: Any) -> Any:
    """Return the position in memory of every element."""
    found = torch.full((), start, dtype=torch.int64, device=x.device)
    for dim, (length, step) in enumerate(zip(size, stride, strict=True)):
        shape = [length if other == dim else 1 for other in range(len(size))]
        found = found + (torch.arange(length, device=x.device) * step).reshape(shape)
    return found


def as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], start: int | None = None
) -> Tensor:
    """Compute ``aten.as_strided`` of a tensor that fills its memory once."""
    order, start = _order(x), start or 0
    if order is None:
        return NotImplemented
    if start == 0 and prod(size) == x.numel() and _is_contiguous(size, stride):
        return x.permute(order).reshape(size)
    flat = x.permute(order).reshape([x.numel()])
    return aten.index.Tensor(flat, [_positions(size, stride, start, x)])


def as_strided_scatter(
    x: Tensor,
    source: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    start: int | None = None,
) -> Tensor:
    """Compute ``aten.as_strided_scatter`` of a tensor that fills its memory once."""
    order, start = _order(x), start or 0
    if order is None:
        return NotImplemented
    shape = [x.shape[dim] for dim in order]
    back = sorted(range(x.ndim), key=lambda dim: order[dim])
    if start == 0 and prod(size) == x.numel() and _is_contiguous(size, stride):
        return source.reshape(shape).permute(back)
    flat = x.permute(order).reshape([x.numel()])
    positions = _positions(size, stride, start, x)
    written = aten.index_put.default(flat, [positions], source)
    return written.reshape(shape).permute(back)
