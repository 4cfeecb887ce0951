"""Rows that a rank does not hold are left out without a copy of those that it does.

What the ops compute is proven by ``test_table.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.profiler import profile

from partita.compiler.rules import position_ops as position_ops  # defines the ops

partita = torch.ops.partita

X, POSITION = torch.arange(12.0).reshape(4, 3), torch.tensor([4, 5, 6])
INDEX = torch.tensor([[5], [0], [-2], [4]])


def put_once() -> Tensor:
    return partita.scatter.default(X, POSITION, 1, 8, INDEX, -X[:, :1], False)


def added() -> Tensor:
    return partita.scatter.default(X, POSITION, 1, 8, INDEX, -X[:, :1], True)


def added_by_rows() -> Tensor:
    rows = [POSITION], [1], [8], [torch.tensor([5, 0, 5])]
    return partita.index_put.default(X, *rows, torch.ones(4, 3), True)


@pytest.mark.parametrize(
    ("compute", "changed"),
    [
        (put_once, {(0, 1): 0.0, (2, 2): -6.0, (3, 0): -9.0}),
        (added, {(0, 1): 1.0, (2, 2): 2.0, (3, 0): 0.0}),
        (added_by_rows, {(row, 1): 3.0 * row + 3 for row in range(4)}),
    ],
)
def test_no_row_is_made_to_spare(
    compute: Callable[[], Tensor], changed: dict[tuple[int, int], float]
) -> None:
    wanted = X.clone()
    for at, value in changed.items():
        wanted[at] = value
    calls = profile(use_kineto=False)
    with calls:
        found = compute()
    assert torch.equal(found, wanted)
    assert found.data_ptr() != X.data_ptr()
    names = {event.name for event in calls.function_events or ()}
    assert "aten::cat" not in names


def test_rows_of_nobody_take_nothing() -> None:
    nothing, none = torch.zeros(4, 0), torch.zeros(0, dtype=torch.int64)
    found = partita.scatter.default(nothing, none, 1, 8, INDEX, X[:, :1], True)
    assert found.shape == (4, 0)
    rows = [none], [1], [8], [torch.tensor([5, 0])]
    found = partita.index_put.default(nothing, *rows, torch.ones(4, 2), True)
    assert found.shape == (4, 0)
