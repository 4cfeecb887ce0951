"""A trace leaves the module that it is of as it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx, nn

from partita.compiler.capture.joint import joint_of, joint_without_writes

Trace = Callable[[nn.Module, tuple[Tensor, ...], bool], fx.GraphModule]


class Twice(nn.Module):
    """One part under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
        self.first.register_buffer("scale", torch.ones(4))
        self.second = self.first

    def forward(self, x: Tensor) -> tuple[Tensor]:
        """Return the loss of ``x``."""
        return (self.second(self.first(x) * self.first.scale).square().mean(),)


@pytest.mark.parametrize("trace", [joint_of, joint_without_writes])
def test_a_part_of_two_names_keeps_its_tensors(trace: Trace) -> None:
    model = Twice()
    before = [*model.named_parameters(), *model.named_buffers()]
    trace(model, (torch.ones(2, 4),), True)
    after = [*model.named_parameters(), *model.named_buffers()]
    assert [name for name, _ in after] == [name for name, _ in before]
    assert all(one is other for (_, one), (_, other) in zip(after, before, strict=True))
