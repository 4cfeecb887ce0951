"""Batch norms without momentum keep the means over all batches, traced or not.

Torch reads the number of batches off its buffer, which has no value in a trace, for a
momentum that is one over it. Here it is a tensor to the end.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from partita.compiler.capture.torch_private import BatchNorm


def means_over_batches() -> AbstractContextManager[object]:
    """Return within what batch norms without momentum read no number off a tensor."""
    original = BatchNorm.forward

    def forward(norm: BatchNorm, x: Tensor) -> Tensor:
        count, mean, var = norm.num_batches_tracked, norm.running_mean, norm.running_var
        keeps = norm.training and norm.track_running_stats and norm.momentum is None
        if not keeps or count is None or mean is None or var is None:
            return original(norm, x)
        here, spread = torch.zeros_like(mean), torch.zeros_like(var)
        y = functional.batch_norm(
            x, here, spread, norm.weight, norm.bias, True, 1.0, norm.eps
        )
        with torch.no_grad():
            count.add_(1)
            mean.add_((here - mean) / count)
            var.add_((spread - var) / count)
        return y

    return patch.object(BatchNorm, "forward", forward)
