"""Gradients of averages over windows that stick out, as torch computes them.

With ``ceil_mode`` the last windows may stick out of the padded tensor, and torch
divides by what is left of them. Inductor, up to torch 2.13 at least, divides their
gradients by the whole window's size (its lowering of ``avg_pool2d_backward``): a pool
as wide as the tensor has channels, over one pixel, has gradients 25,600 times too
small. Divided before that by what is right, they need no more than a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten

_BACKWARD = {2: aten.avg_pool2d_backward.default, 3: aten.avg_pool3d_backward.default}


def share_out(
    ndim: int,
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    counts_padding: bool,
    divisor: int | None,
) -> Any:
    """Compute ``avg_pool2d_backward`` or that of 3 dims by a sum over windows.

    One number is that of every dim, as in torch.

    Returns ``NotImplemented`` where no window sticks out, or it does not matter.

    Args:
        ndim: how many dims a window has.
        grad: of the averages ``[.., h', w']``, or with one dim more.
        x: what was averaged ``[.., h, w]``, likewise.
        kernel: the size of a window, by dim; one number is that of every dim.
        stride: from one window to the next, likewise; empty is a window's size.
        padding: zeros at either end, likewise.
        ceil_mode: whether the last windows may stick out.
        counts_padding: whether zeros count in what is divided by.
        divisor: what is divided by instead.
    """
    if divisor is not None or not (ceil_mode and counts_padding):
        return NotImplemented
    kernel, steps, padding = (
        [*sizes] * (ndim // len(sizes)) for sizes in (kernel, stride or kernel, padding)
    )
    sticks_out = False
    for dim in range(-ndim, 0):
        begins = torch.arange(grad.shape[dim], device=grad.device)
        begins = begins * steps[dim] - padding[dim]
        end = x.shape[dim] + padding[dim]
        last = (grad.shape[dim] - 1) * steps[dim] - padding[dim]
        sticks_out |= last + kernel[dim] > end
        sizes = (begins + kernel[dim]).clamp(max=end) - begins
        grad = grad / sizes.view(-1, *[1] * (-1 - dim))
    if not sticks_out:
        return NotImplemented
    whole = kernel, steps, padding, ceil_mode, counts_padding, 1
    return _BACKWARD[ndim](grad, x, *whole)
