"""Rows that a mask puts among others: each part of the batch does with its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.errors import BadBatch
from partita.compiler.rules.part_ops import masked_scatter_part

BATCH, SEQUENCE, WIDTH, IMAGE = 8, 6, 16, 7


class Seeing(nn.Module):
    """Reads words with rows of images among them."""

    def __init__(self, writes_rows: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.images = nn.Embedding(8, WIDTH), nn.Linear(5, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, 8)
        self.writes_rows = writes_rows

    def forward(self, ids: Tensor, images: Tensor, told: Tensor) -> Tensor:
        """Return the loss of words ``[batch, sequence]`` and images of two rows."""
        x, rows = self.words(ids), self.images(images)
        if self.writes_rows:
            x[ids == IMAGE] = rows.flatten(0, 1)
        else:
            mask = (ids == IMAGE).unsqueeze(-1).expand_as(x)
            x = x.masked_scatter(mask, rows)
        scores = self.down(self.up(x).relu())
        return nn.functional.cross_entropy(scores.flatten(0, 1), told.flatten())


def batch() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    ids = torch.randint(0, IMAGE, (BATCH, SEQUENCE))
    for sample in range(BATCH):
        ids[sample, sample % 3 : sample % 3 + 2] = IMAGE
    return ids, torch.randn(BATCH, 2, 5), torch.randint(0, 8, (BATCH, SEQUENCE))


@pytest.mark.parametrize("writes_rows", [False, True])
@pytest.mark.parametrize("where", ["dp=2,tp=2", "pp=2,dp=1"])
def test_every_microbatch_puts_its_own_rows(writes_rows: bool, where: str) -> None:
    model, args = Seeing(writes_rows), batch()
    options = pt.Options(microbatches=4, time_limit=8)
    plan = pt.plan(model, *args, mesh=where, options=options)
    report = pt.verify(model, *args, plan=plan)
    assert report.ok, report


def test_a_part_is_checked_and_the_whole_batch_is_not() -> None:
    model, args = Seeing(writes_rows=False), batch()
    ops: list[set[str]] = []
    for count in (1, 2):
        options = pt.Options(microbatches=count)
        plan = pt.plan(model, *args, mesh="tp=2", options=options)
        ops.append({node.op for node in plan.nodes.values()})
    whole, part = ops
    assert "aten.masked_scatter.default" in whole
    assert "partita.masked_scatter_part.default" in part - whole
    assert "aten.masked_scatter.default" not in part


def test_rows_of_another_part_are_refused_when_they_come() -> None:
    model, (ids, images, told) = Seeing(writes_rows=False), batch()
    options = pt.Options(microbatches=2)
    plan = pt.plan(model, ids, images, told, mesh="tp=2", options=options)
    moved = ids.clone()
    moved[0], moved[-1] = 0, IMAGE
    moved[-1, 4:] = 0
    report = pt.verify(model, moved, images, told, plan=plan)
    assert not report.ok
    assert "BadBatch: masked_scatter: a microbatch has 96 places for 128" in str(report)


def test_a_part_does_what_the_op_does() -> None:
    x, mask = torch.zeros(2, 3), torch.tensor([[True, False, True]]).expand(2, 3)
    found = masked_scatter_part(x, mask, torch.arange(1.0, 5.0))
    assert found.tolist() == [[1.0, 0.0, 2.0], [3.0, 0.0, 4.0]]
    with pytest.raises(BadBatch, match=r"4 places for 5 elements.*microbatches=1"):
        masked_scatter_part(x, mask, torch.arange(5.0))
