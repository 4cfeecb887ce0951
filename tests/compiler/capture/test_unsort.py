"""Rows that are sorted and put back need not be sorted, unless their order matters."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import op_name

KEYS = torch.randint(0, 3, (4, 2), generator=torch.Generator().manual_seed(0))
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))

Body = Callable[["Experts", Tensor, Tensor], Tensor]
"""What is done to sorted rows ``[rows, 8]``, given their keys in that order."""


class Experts(nn.Module):
    """Each row goes to two experts: sorted by expert, worked on, put back, added."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 8, 8))
        self.bias = nn.Parameter(torch.rand(3, 8))
        self.body = body

    def forward(self, x: Tensor, keys: Tensor) -> Tensor:
        """Return the mean square; ``x`` is ``[4, 8]``, ``keys`` are ``[4, 2]``."""
        flat = keys.reshape(-1)
        order = torch.argsort(flat)
        rows = self.body(self, x[order // 2], flat[order])
        back = torch.empty_like(order)
        back[order] = torch.arange(order.shape[0])
        out = rows[back].reshape(*keys.shape, -1).sum(1)
        return out.square().mean()


def _ends(keys: Tensor) -> Tensor:
    counts = torch.histc(keys.float(), bins=3, min=0, max=2)
    return counts.cumsum(0, dtype=torch.int32)


def _multiply(m: Experts, x: Tensor, ends: Tensor) -> Tensor:
    half = x.bfloat16(), m.weight.bfloat16()
    return torch._grouped_mm(*half, ends).float()  # type: ignore[no-any-return]


def _grouped(m: Experts, x: Tensor, keys: Tensor) -> Tensor:
    return _multiply(m, x, _ends(keys))


def _gelu(m: Experts, x: Tensor, keys: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x @ m.weight[0]) + m.bias[keys]


def _sum_of_rows(m: Experts, x: Tensor, keys: Tensor) -> Tensor:
    return x @ m.weight[0] + x.sum(0)


def _cumsum(m: Experts, x: Tensor, keys: Tensor) -> Tensor:
    return (x @ m.weight[0]).cumsum(0)


def _position(m: Experts, x: Tensor, keys: Tensor) -> Tensor:
    return x @ m.weight[0] * torch.arange(x.shape[0]).unsqueeze(1)


def _other_ends(m: Experts, x: Tensor, keys: Tensor) -> Tensor:
    ends = (_ends(keys) + 1).clamp(max=keys.shape[0])
    return _multiply(m, x, ends)


def _ops(body: Body) -> set[str]:
    program = capture(Experts(body), (X, KEYS), {}).program
    return {op_name(node).split(".")[1] for node in program.calls()}


@pytest.mark.parametrize("body", [_grouped, _gelu, _sum_of_rows])
def test_rows_stay_as_they_lie_and_split(body: Body) -> None:
    assert not _ops(body) & {"sort", "histc", "cumsum"}

    options = pt.Options(hardware="cpu-gloo-free", pins={"x": "(S(0),)"})
    plan = pt.plan(Experts(body), X, KEYS, mesh=pt.Mesh(dp=2), options=options)
    assert not plan.reported
    report = pt.verify(Experts(body), X, KEYS, plan=plan)
    assert report.ok, str(report)


@pytest.mark.parametrize("body", [_cumsum, _position, _other_ends])
def test_rows_stay_sorted_where_their_order_matters(body: Body) -> None:
    model = Experts(body)
    assert "sort" in _ops(body)

    plan = pt.plan(model, X, KEYS, mesh=pt.Mesh(dp=2))
    report = pt.verify(model, X, KEYS, plan=plan)
    assert report.ok, str(report)


def test_rows_that_are_returned_stay_sorted() -> None:
    class Returns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(8))

        def forward(self, x: Tensor, keys: Tensor) -> dict[str, Tensor]:
            rows = (x * self.weight)[torch.argsort(keys[:, 0])]
            return {"loss": rows.square().mean(), "rows": rows}

    program = capture(Returns(), (X, KEYS), {}).program
    assert "aten.sort.default" in {op_name(node) for node in program.calls()}
