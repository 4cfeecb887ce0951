"""Batch norms: of the whole batch, and their running means those over all batches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

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


class Synced(Normed):
    """Asks other ranks for their parts of the batch, where there are such."""

    def __init__(self, momentum: float | None) -> None:
        super().__init__()
        self.norm = nn.SyncBatchNorm(4, momentum=momentum)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_a_norm_that_asks_other_ranks_is_planned_for_the_whole_batch(
    momentum: float | None,
) -> None:
    torch.manual_seed(0)
    model, x = Synced(momentum), torch.randn(6, 4)
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        plan = pt.plan(model, x, mesh="dp=2")
    finally:
        dist.destroy_process_group()
    report = pt.verify(model, x, plan=plan)
    assert report.ok, report
    assert "buffer:norm.running_var" in report.errors
