"""Counts of integers are planned as torch counts, where their number is known."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.counts import bincount
from partita.compiler.errors import CaptureFailed

IDS = torch.tensor([2, 0, 2, 3])


class Balanced(nn.Module):
    """Counts which of four each row is for, as experts that share a load do."""

    def __init__(self, minlength: int) -> None:
        super().__init__()
        self.router, self.minlength = nn.Linear(8, 4), minlength

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[rows, 8]`` and their ``ids``."""
        shares = self.router(x).softmax(-1)
        counts = torch.bincount(ids, minlength=self.minlength)
        sums = ids.bincount(shares.detach()[:, 0], 4)
        return (shares.mean(0) * (counts[:4] + sums)).sum()


def test_counts_of_known_length() -> None:
    torch.manual_seed(0)
    args, options = (torch.randn(4, 8), IDS), pt.Options(pins={"ids": "S(0)"})
    plan = pt.plan(Balanced(4), *args, mesh="dp=2", options=options)
    report = pt.verify(Balanced(4), *args, plan=plan)
    assert report.ok, report


def test_counts_whose_length_goes_by_values_are_refused() -> None:
    with pytest.raises(CaptureFailed, match="a shape depends on values"):
        pt.plan(Balanced(0), torch.randn(4, 8), IDS, mesh="dp=2")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_sums_of_weights_have_the_dtype_of_torch(dtype: torch.dtype) -> None:
    weights = torch.tensor([1, 2, 3, 4], dtype=dtype)
    assert torch.equal(bincount(IDS, weights, 5), torch.bincount(IDS, weights, 5))
    assert bincount(IDS, weights, 5).dtype == torch.bincount(IDS, weights, 5).dtype


def test_an_integer_beyond_fails() -> None:
    with pytest.raises((RuntimeError, IndexError)):
        bincount(IDS, None, 3)
