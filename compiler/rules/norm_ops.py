"""Statistics of a batch norm, as sums that ranks with parts of the batch add up.

Each reads its tensors once, by the kernels that torch has for a batch norm; taken apart
into products and sums of them the same would pass over memory many times.
"""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


@torch.library.custom_op("partita::batch_norm_deviations", mutates_args=())
def batch_norm_deviations(x: Tensor, mean: Tensor) -> Tensor:
    """Return by channel the sum of squares of what differs from ``mean``.

    The squares about the mean of what is here, and what that mean differs by: no
    digits are lost to each other, whatever the mean is.

    Args:
        x: channels second.
        mean: ``[channels]``.
    """
    count = x.numel() // max(x.shape[1], 1)
    if count == 0:
        return torch.zeros_like(mean)
    own, variance = aten.batch_norm_update_stats(x, None, None, 0.0)
    return (variance + (own - mean).square()) * count


@batch_norm_deviations.register_fake
def _(x: Tensor, mean: Tensor) -> Tensor:
    return mean.new_empty(mean.shape)


@torch.library.custom_op("partita::batch_norm_products", mutates_args=())
def batch_norm_products(
    grad: Tensor, x: Tensor, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor]:
    """Return by channel the sums of ``grad`` times the normalized ``x``, of ``grad``.

    Args:
        grad: channels second.
        x: what was normalized, of the same shape.
        mean: ``[channels]``.
        deviation: one over the standard deviation, ``[channels]``.
    """
    if x.numel() == 0:
        return torch.zeros_like(mean), torch.zeros_like(mean)
    wanted = [False, True, True]
    _, products, sums = aten.native_batch_norm_backward(
        grad, x, None, None, None, mean, deviation, True, 0.0, wanted
    )
    return products, sums


@batch_norm_products.register_fake
def _(
    grad: Tensor, x: Tensor, mean: Tensor, deviation: Tensor
) -> tuple[Tensor, Tensor]:
    return mean.new_empty(mean.shape), mean.new_empty(mean.shape)
