"""Buffers that a model assigns from each other are those of before the step."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.capture import small_models as small
from torch import Tensor

from partita.compiler.capture.capture import capture


class Shifting(small.Scale):
    """Keeps the means of the two batches before, and their parts in another order."""

    def __init__(self) -> None:
        super().__init__()
        for at, name in enumerate(("last", "earlier", "left", "right")):
            self.register_buffer(name, torch.full((4,), float(at)))

    def forward(self, x: Tensor) -> Tensor:
        loss = (x * self.w + self.earlier).square().mean()
        self.earlier, self.last = self.last, x.mean(0)
        self.left, self.right = self.right.flip(0).view(4), self.left[:]
        return loss


@pytest.mark.parametrize("precision", [None, "bfloat16"])  # is exported first
def test_buffers_assigned_from_each_other_are_those_of_before(
    precision: str | None,
) -> None:
    model, x = Shifting(), small.batch()
    captured = capture(model, (x,), {}, precision=precision)
    found = small.run_captured(captured, model, x)
    _, wanted = small.run_eager(model, x)
    buffers = {name for name in found if name.startswith("mutated-buffer")}
    assert len(buffers) == 4
    for name in buffers:
        torch.testing.assert_close(found[name], wanted[name])
