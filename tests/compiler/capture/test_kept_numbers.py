"""Whole numbers in buffers that no state dict holds may decide sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.capture.kept_numbers import kept_numbers
from partita.compiler.errors import CaptureFailed


class Padded(nn.Module):
    """A convolution that computes its padding by a stride in a buffer."""

    stride: Tensor
    calls: Tensor

    def __init__(self, persistent: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(2, 4, 3, stride=2)
        stride = torch.tensor(self.conv.stride[0])
        self.register_buffer("stride", stride, persistent=persistent)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean square of what is made of ``x`` ``[batch, 2, length]``."""
        length = x.shape[-1]
        frames = torch.ceil(torch.tensor(length) / self.stride).to(torch.int64)
        padding: Any = frames * self.stride + 1 - length
        self.calls += 1
        return self.conv(functional.pad(x, (0, padding))).square().mean()


class Counting(Padded):
    def forward(self, x: Tensor) -> Tensor:
        self.stride += 0
        return super().forward(x)


class CountingBehind(Padded):
    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        self.stride += 1
        return made


class Replacing(Padded):
    def forward(self, x: Tensor) -> Tensor:
        made = super().forward(x)
        self.stride = self.stride + 1
        return made


def test_sizes_go_by_numbers_that_are_kept() -> None:
    model, x = Padded(), torch.randn(4, 2, 9)
    assert kept_numbers(model) == {"stride": 2}
    plan = pt.plan(model, x, mesh="dp=2")
    report = pt.verify(model, x, plan=plan)
    assert report.ok, report
    assert "calls" in {role.name for role in capture(model, (x,), {}).program.inputs}
    assert model.stride is dict(model.named_buffers())["stride"]
    assert model.stride.tolist() == 2


@pytest.mark.parametrize(
    "model", [Padded(persistent=True), Counting(), CountingBehind(), Replacing()]
)
def test_numbers_that_may_change_are_no_sizes(model: nn.Module) -> None:
    with pytest.raises(CaptureFailed, match=r"by a tensor's values|read off a tensor"):
        capture(model, (torch.randn(4, 2, 9),), {})
