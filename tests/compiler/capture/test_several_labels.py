"""Losses of several labels a row are captured as torch computes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import partita as pt
from partita.compiler.capture.several_labels import multilabel_margin_loss

LABELS = torch.tensor(
    [[1, 3, -1, 0, 0], [4, -1, 2, 2, 2], [-1, 0, 1, 2, 3], [2, 0, 1, 3, 4]]
)


class Tagging(nn.Module):
    """Scores five tags."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head, self.loss = nn.Linear(8, 5), loss

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[batch, 8]``."""
        return self.loss(self.head(x), labels).mean()


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_labels_end_at_the_first_that_is_none(reduction: str) -> None:
    model = Tagging(nn.MultiLabelMarginLoss(reduction=reduction))
    args = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), LABELS
    plan = pt.plan(model, *args, mesh="dp=2", options=pt.Options(microbatches=2))
    report = pt.verify(model, *args, plan=plan)
    assert report.ok, report


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("scores", [torch.randn(4, 5), torch.zeros(4, 5)])
@pytest.mark.parametrize(
    "options",
    [
        {"reduction": "none"},
        {"reduction": "sum"},
        {"size_average": False},
        {"reduce": False},
        {"reduce": True},
    ],
)
def test_it_is_the_loss_of_torch(scores: Tensor, options: dict[str, Any]) -> None:
    for x, labels in ((scores, LABELS), (scores[0], LABELS[0])):
        mine, own = (x.clone().requires_grad_() for _ in range(2))
        found = multilabel_margin_loss(mine, labels, **options)
        wanted = functional.multilabel_margin_loss(own, labels, **options)
        torch.testing.assert_close(found, wanted)
        found.sum().backward()
        wanted.sum().backward()
        torch.testing.assert_close(mine.grad, own.grad)
