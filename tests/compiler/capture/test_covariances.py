"""Covariances are planned, and are those of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.covariances import correlations, covariances

ROWS = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
OFTEN, MUCH = torch.tensor([1, 2, 1, 3, 1, 1]), torch.linspace(0.5, 1.0, 6)


class Decorrelating(nn.Module):
    """Has outputs go together as little as can be."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Return how much the outputs of ``x`` ``[batch, 8]`` go together."""
        y = self.layer(x).T
        together = torch.corrcoef(y) + y.corrcoef() + torch.cov(y) + y.cov(correction=0)
        return together.triu(1).square().sum()


def test_what_goes_together_is_planned() -> None:
    model, x = Decorrelating(), torch.randn(8, 8)
    plan = pt.plan(model, x, mesh="dp=2,tp=2")
    report = pt.verify(model, x, plan=plan)
    assert report.ok, report


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"correction": 0},
        {"fweights": OFTEN},
        {"aweights": MUCH},
        {"fweights": OFTEN, "aweights": MUCH, "correction": 2},
        {"aweights": MUCH, "correction": 0},
    ],
)
@pytest.mark.parametrize("rows", [ROWS, ROWS[0], ROWS + 1j * ROWS.flip(1)])
def test_covariances_are_those_of_torch(rows: Tensor, options: dict[str, Any]) -> None:
    torch.testing.assert_close(covariances(rows, **options), torch.cov(rows, **options))


@pytest.mark.parametrize("rows", [ROWS, ROWS[0], ROWS + 1j * ROWS.flip(1)])
def test_correlations_are_those_of_torch(rows: Tensor) -> None:
    torch.testing.assert_close(correlations(rows), torch.corrcoef(rows))


def test_more_than_rows_of_observations_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"at most two dims, found \[2, 2, 6\]"):
        covariances(ROWS.reshape(2, 2, 6))
