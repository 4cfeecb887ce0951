"""Grouped products equal aten's, and the einsum that they are written as."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.capture.grouped import (
    grouped_mm,
    grouped_products,
    members,
    multiply,
    outer,
)
from partita.compiler.ir.program import op_name

aten = torch.ops.aten
ENDS = torch.tensor([3, 3, 8], dtype=torch.int32)


def _random(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator)


@pytest.mark.parametrize(
    ("a", "b", "ends"),
    [
        (_random(8, 16), _random(3, 16, 4), ENDS),
        (_random(16, 8), _random(8, 12), ENDS),
        (_random(3, 16, 4), _random(4, 8), ENDS),
        (_random(3, 8, 16), _random(3, 16, 4), None),
    ],
    ids=["rows of a", "contracted", "columns of b", "batched"],
)
def test_grouped_mm_equals_aten_in_single_and_takes_double(
    a: Tensor, b: Tensor, ends: Tensor | None
) -> None:
    wanted = aten._grouped_mm.default(a, b, ends)
    found = grouped_mm(a.double(), b.double(), ends)

    torch.testing.assert_close(grouped_mm(a, b, ends), wanted)
    torch.testing.assert_close(found.float(), wanted)


def test_ops_are_the_einsums_where_rows_are_in_no_order_and_one_of_no_group() -> None:
    x, weight, grad = _random(4, 5), _random(3, 5, 6), _random(4, 6)
    member = torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 1], [0, 1, 0]]).bool()
    ones = member.float()

    torch.testing.assert_close(
        multiply(x, weight, member), torch.einsum("sk,ekn,se->sn", x, weight, ones)
    )
    torch.testing.assert_close(
        outer(x, grad, member), torch.einsum("sk,sn,se->ekn", x, grad, ones)
    )


def test_rows_past_the_last_end_are_of_no_group() -> None:
    ends = torch.tensor([0, 2])

    assert members(ends, 3).int().tolist() == [[0, 1], [0, 1], [0, 0]]


class Experts(nn.Module):
    """One expert per token, sorted by expert; torch traces the product in bf16 only."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 3)
        self.weight = nn.Parameter(_random(3, 16, 8).bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        """Return a scalar of tokens ``[tokens, 16]``."""
        score, expert = self.router(x).softmax(-1).max(-1)
        order = expert.argsort()
        counts = torch.histc(expert.float(), 3, 0, 2)
        ends = counts.cumsum(0).to(torch.int32)
        sorted_x = x[order].bfloat16()
        out = nn.functional.grouped_mm(sorted_x, self.weight, offs=ends)
        return (out * score[order].unsqueeze(1)).square().mean()


def test_captured_experts_have_no_op_that_states_where_groups_end() -> None:
    program = capture(Experts(), (_random(24, 16),), {}).program
    ops = {op_name(node) for node in program.calls()}

    assert {"partita.grouped_multiply.default", "partita.grouped_outer.default"} <= ops
    assert not ops & {str(op) for op in grouped_products()}


def test_experts_split_over_ranks_compute_what_the_model_computes() -> None:
    model, x = Experts(), _random(24, 16)
    pins = {"weight": "(S(0),)", "x": "(B,)"}
    options = pt.Options(hardware="cpu-gloo-free", pins=pins)
    plan = pt.plan(model, x, mesh=pt.Mesh(ep=3), options=options)

    report = pt.verify(model, x, plan=plan)

    assert report.ok, str(report)
