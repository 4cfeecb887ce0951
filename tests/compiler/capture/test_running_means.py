"""Batch norms without momentum: their running means are those over all batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import partita as pt


class Normed(nn.Module):
    """Batch norms, one of which keeps means over all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4, momentum=None)
        self.other = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        """Return a scalar of ``x`` ``[batch, 4]``."""
        return self.other(self.norm(self.linear(x)).square()).relu().mean()


def test_a_batch_norm_without_momentum_is_planned() -> None:
    torch.manual_seed(0)
    model, x = Normed(), torch.randn(6, 4)
    model(torch.randn(6, 4))  # this is the second batch
    report = pt.verify(model, x, plan=pt.plan(model, x, mesh="dp=2"))
    assert report.ok, report
    assert "buffer:norm.running_var" in report.errors
