"""What each row takes of itself: a gather where rows are counted, else an index."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.ir.program import op_name

X = torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(0))
LAST = torch.tensor([5, -1, 0, -6])
SOME = torch.tensor([[1, 1], [0, -2], [5, 3], [2, 4]])

Take = Callable[[Tensor, Tensor], Tensor]
"""What is taken, at an index, of a layer's output ``[4, 6, 8]``."""


class Taken(nn.Module):
    """The mean square of what is taken of a layer's output."""

    def __init__(self, take: Take) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.take = nn.Linear(8, 8), take

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[4, 6, 8]``."""
        return self.take(self.layer(x), at).square().mean()


def _rows(y: Tensor, at: Tensor) -> Tensor:
    return y[torch.arange(4), at]


def _numbers(y: Tensor, at: Tensor) -> Tensor:
    return y[:, :, 0][torch.arange(4), at]


def _several(y: Tensor, at: Tensor) -> Tensor:
    return y[torch.arange(8 // 2).reshape(4, 1), at]


def _mixed(y: Tensor, at: Tensor) -> Tensor:
    return y[torch.arange(4).flip(0), at]


def _too_few(y: Tensor, at: Tensor) -> Tensor:
    return y[torch.arange(3), at]


COUNTED = [(_rows, LAST), (_numbers, LAST), (_several, SOME), (_several, SOME[:1])]
OTHERS = [(_mixed, LAST), (_too_few, LAST[:3])]


def ops_of(captured: Captured) -> set[str]:
    return {op_name(node).split(".")[1] for node in captured.program.calls()}


@pytest.mark.parametrize(("take", "at"), COUNTED)
def test_rows_that_are_counted_gather(take: Take, at: Tensor) -> None:
    found = ops_of(capture(Taken(take), (X, at), {}))
    assert {"gather", "scatter_add"} <= found
    assert not {"index", "index_put"} & found


@pytest.mark.parametrize(("take", "at"), OTHERS)
def test_rows_that_are_not_stay_an_index(take: Take, at: Tensor) -> None:
    found = ops_of(capture(Taken(take), (X, at), {}))
    assert {"index", "index_put"} <= found
    assert not {"gather", "scatter_add"} & found


@pytest.mark.parametrize(("take", "at"), [*COUNTED, *OTHERS])
def test_it_computes_the_same(take: Take, at: Tensor) -> None:
    plan = pt.plan(Taken(take), X, at, mesh=pt.Mesh(tp=2))
    assert pt.verify(Taken(take), X, at, plan=plan).ok


def test_a_batch_of_rows_is_cut_in_time_and_over_ranks() -> None:
    options = pt.Options(microbatches=2, pins={"x": "(S(0),)"})
    model, mesh = Taken(_rows), pt.Mesh(dp=2)
    plan = pt.plan(model, X, LAST, mesh=mesh, options=options)
    assert str(plan.nodes["index.Tensor/0"].signature.results[0]) == "(S(0),)"
    assert pt.verify(model, X, LAST, plan=plan).ok


def test_a_mask_of_rows_counts_nothing() -> None:
    def add(y: Tensor, at: Tensor) -> Tensor:
        some = torch.arange(4) < 3
        return y.index_put((some, at), torch.ones(3, 8), accumulate=True)

    found = ops_of(capture(Taken(add), (X, LAST[:3]), {}))
    assert "index_put" in found
    assert "scatter_add" not in found


def test_what_is_out_of_range_is_still_refused() -> None:
    model, at = Taken(_rows), LAST + 6
    with pytest.raises(IndexError):
        model(X, at)
    plan = pt.plan(model, X, at, mesh=pt.Mesh(dp=1))
    with pytest.raises(RuntimeError, match="out of bounds"):
        pt.compile(model, plan).step(X, at)
