"""What stages make goes to all ranks, whatever its dtype is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import partita as pt
from partita.runtime.launch import launch

DTYPES = (torch.int16, torch.bool, torch.bfloat16, torch.float8_e4m3fn)


class Typed(nn.Module):
    """Layers behind each other, and what they make in other dtypes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return tensors of ``x`` ``[4, 4]``."""
        y = self.second(self.first(x).tanh())
        return [y.sum(), *((3 * y).to(dtype) for dtype in DTYPES)]


def outputs(document: dict[str, Any], x: torch.Tensor) -> list[torch.Tensor]:
    found = pt.compile(Typed(), pt.Plan.from_dict(document))(x)
    return [each.double() for each in found]


@pytest.mark.dist
def test_all_ranks_have_outputs_of_any_dtype() -> None:
    x = torch.linspace(-2, 2, 16).view(4, 4)
    options = pt.Options(train=False)
    plan = pt.plan(Typed(), x, mesh="pp=2,dp=1", options=options)
    wanted = [each.detach().double() for each in Typed()(x)]
    for found in launch(outputs, 2, (plan.to_dict(), x), timeout_s=60):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
