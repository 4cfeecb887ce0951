"""Look-ups that ask for sparse gradients train as those that do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import partita as pt


class LookedUp(nn.Module):
    """Rows of a table, one by one, in equal bags or in bags that begin somewhere."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.rows = (
            nn.Embedding(16, 8, padding_idx=3, sparse=True)
            if kind == "rows"
            else nn.EmbeddingBag(16, 8, mode="sum", sparse=True)
        )
        self.out = nn.Linear(8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        """Return a mean over rows of ``ids`` ``[4, 3]``."""
        if self.kind == "offsets":
            made = self.rows(ids.flatten(), torch.tensor([0, 3, 8]))
        else:
            made = self.rows(ids)
        return self.out(made).square().mean()


@pytest.mark.parametrize("kind", ["rows", "bags", "offsets"])
@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_tables_of_sparse_gradients_train(kind: str, precision: str | None) -> None:
    torch.manual_seed(0)
    model, ids = LookedUp(kind), torch.arange(12).reshape(4, 3)
    options = pt.Options(precision=precision)
    plan = pt.plan(model, ids, mesh=pt.Mesh(tp=2), options=options)
    report = pt.verify(model, ids, plan=plan)
    assert report.ok, str(report)
    assert "rows.weight" in report.errors
