"""Batch norms are of the whole batch, and keep means over all of them, traced or not.

Without momentum torch reads the number of batches off its buffer, which has no value in
a trace, for a momentum that is one over it. Here it is a tensor to the end.

A ``SyncBatchNorm`` is told of other ranks' parts of a batch where the process has a
group, and refuses what is on a CPU. What is traced is the step of all ranks, which has
the whole batch.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

from partita.compiler.capture.torch_private import BatchNorm


@contextmanager
def whole_batches() -> Generator[None]:
    """Within it batch norms ask no other rank, and read no number off a tensor."""
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

    of_all = patch.object(nn.SyncBatchNorm, "forward", forward)
    with patch.object(BatchNorm, "forward", forward), of_all:
        yield
