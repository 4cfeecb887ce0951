"""What is taken apart and joined again is what it was."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import op_name


class Joining(nn.Module):
    """Makes what a function makes of the outputs of a layer."""

    def __init__(self, join: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.join = nn.Linear(4, 4), join

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean of what is made of ``x`` ``[8, 6, 4]``."""
        made = self.join(self.layer(x))
        return (made * torch.arange(float(made.shape[0] * 2)).cos()[::2, None]).mean()


def samples(y: Tensor) -> Tensor:
    return torch.cat(list(y))


def halves(y: Tensor) -> Tensor:
    return torch.cat(y.split([5, 3])).flatten(0, 1)


def steps(y: Tensor) -> Tensor:
    return torch.cat([y[:, :2], y[:, 2:]], 1).flatten(0, 1)


def swapped(y: Tensor) -> Tensor:
    return torch.cat([y[4:], y[:4]]).flatten(0, 1)


def moved(y: Tensor) -> Tensor:
    return torch.cat([y[:, :3].flatten(1), y[:, 3:].flatten(1)], 1)


def fewer(y: Tensor) -> Tensor:
    return torch.cat([y[:4], y[4:7]]).flatten(0, 1)


def joins(join: Callable[[Tensor], Tensor]) -> bool:
    program = capture(Joining(join), (torch.randn(8, 6, 4),), {}).program
    return "aten.cat.default" in {op_name(node) for node in program.calls()}


@pytest.mark.parametrize("join", [samples, halves, steps])
def test_all_pieces_in_their_order_are_the_whole(
    join: Callable[[Tensor], Tensor],
) -> None:
    assert not joins(join)
    model, x = Joining(join), torch.randn(8, 6, 4)
    plan = pt.plan(model, x, mesh="dp=2", options=pt.Options(microbatches=2))
    report = pt.verify(model, x, plan=plan)
    assert report.ok, report


@pytest.mark.parametrize("join", [swapped, moved, fewer])
def test_other_pieces_are_joined(join: Callable[[Tensor], Tensor]) -> None:
    assert joins(join)
    model, x = Joining(join), torch.randn(8, 6, 4)
    report = pt.verify(model, x, plan=pt.plan(model, x, mesh="dp=2"))
    assert report.ok, report
