"""Models that invert matrices are planned, and checks of these stay in the program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import op_name


class Mixed(nn.Module):
    """A layer whose outputs are mixed by a function of a symmetric matrix."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar of ``x`` ``[batch, 4]``."""
        weight = self.linear.weight
        mixing = self.function(weight @ weight.T + torch.eye(4))
        return (self.linear(x) @ mixing).square().mean()


@pytest.mark.parametrize("function", [torch.linalg.inv, torch.linalg.cholesky])
def test_functions_of_matrices_are_planned(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    torch.manual_seed(0)
    model, x = Mixed(function), torch.randn(4, 4)
    ops = [op_name(node) for node in capture(model, (x,), {}).program.calls()]
    assert "aten._linalg_check_errors.default" in ops
    report = pt.verify(model, x, plan=pt.plan(model, x, mesh="dp=2"))
    assert report.ok, report
