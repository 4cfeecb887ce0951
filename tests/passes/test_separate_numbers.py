"""Numbers that are added to computed numbers become tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import Program, info, op_name, operands
from partita.passes.base import run_sequence
from partita.passes.separate_numbers import SeparateNumbers


class Scored(nn.Module):
    """A layer, and a loss that a function makes of its output."""

    def __init__(self, loss: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.loss = loss

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[batch, 4]``."""
        return self.loss(self.layer(x))


def _separated(loss: Callable[[Tensor], Tensor]) -> tuple[Program, Program]:
    program = capture(Scored(loss), (torch.randn(2, 4),), {}).program
    return program, run_sequence(program, (SeparateNumbers(),))


def added(y: Tensor) -> Tensor:
    return y.mean() + 0.5


def taken_from(y: Tensor) -> Tensor:
    return 0.5 - y.mean()


def taken(y: Tensor) -> Tensor:
    return y.mean() - 0.5


@pytest.mark.parametrize(
    ("loss", "op"),
    [
        (added, "aten.add.Tensor"),
        (taken_from, "aten.sub.Tensor"),
        (taken, "aten.sub.Tensor"),
    ],
)
def test_a_number_added_to_a_loss_is_a_tensor(
    loss: Callable[[Tensor], Tensor], op: str
) -> None:
    before, after = _separated(loss)
    (node,) = [n for n in after.calls() if op_name(n) == op]
    assert len(operands(node)) == 2
    (made,) = [n for n in after.calls() if info(n).key.endswith(("#0", "#1"))]
    assert made.args == ([], 0.5)
    assert str(info(made).types[0]) == "f32[]"
    keys = [info(n).key for n in after.nodes() if n is not made]
    assert keys == [info(n).key for n in before.nodes()]


def to_many(y: Tensor) -> Tensor:
    return (y + 0.5).square().mean()


def zero(y: Tensor) -> Tensor:
    return 0.0 + y.mean()


def to_an_integer(y: Tensor) -> Tensor:
    return y.mean() * (y.argmax() + 1)


@pytest.mark.parametrize("loss", [to_many, zero, to_an_integer])
def test_zeros_stay_and_what_is_added_to_many_or_to_an_integer(
    loss: Callable[[Tensor], Tensor],
) -> None:
    before, after = _separated(loss)
    assert str(after.graph) == str(before.graph)
