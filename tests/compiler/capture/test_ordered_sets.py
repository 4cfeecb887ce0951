"""What a model does for each of a set it does in one order, in every process."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from partita.compiler.capture.capture import capture
from partita.compiler.capture.ordered_sets import OrderedSet
from partita.compiler.ir.program import op_name

OPS = "sin cos tan exp tanh sigmoid neg abs square sqrt log sinh cosh asin".split()


class OfAllKinds(nn.Module):
    """Calls each of some functions once, named by a set that has some of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4))
        self.ops = [*OPS, *OPS[:3]]

    def forward(self, x: Tensor) -> Tensor:
        """Return a sum over ``x`` ``[batch, 4]``."""
        made = {name: getattr(torch, name)(x * self.w) for name in set(self.ops)}
        return torch.stack([made[name] for name in OPS]).sum()


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_a_model_goes_through_its_sets_in_order(precision: str | None) -> None:
    captured = capture(OfAllKinds(), (torch.rand(2, 4),), {}, precision=precision)
    named = [op_name(node).split(".")[1] for node in captured.program.calls()]
    forward = [name for name in dict.fromkeys(named) if name in OPS]
    plain = [name for name in OPS if name != "square"]  # which is a power
    assert forward == plain
    assert "set" not in globals(), "it is Python's own again"


A, B = "a quick brown fox".split(), "jumps over a lazy quick dog".split()


def test_sets_of_sets_are_in_order() -> None:
    a, b = OrderedSet(A), OrderedSet(B)
    assert list(a | b) == [*A, "jumps", "over", "lazy", "dog"]
    assert list(a & set(B)) == ["a", "quick"]
    assert list(a - b) == ["brown", "fox"]
    assert list(a ^ b) == ["brown", "fox", "jumps", "over", "lazy", "dog"]
    assert list(a.union(B, ["end"])) == [*(a | b), "end"]
    assert list(a.copy()) == A
    assert a == set(A)
    assert a | b == set(A) | set(B)


def test_what_is_put_in_and_taken_out_stays_in_order() -> None:
    a = OrderedSet(A)
    a.discard("quick")
    a |= set(["z"])
    a.add("y")
    assert [a.pop(), *a] == ["a", "brown", "fox", "z", "y"]
    a ^= {"fox", "x"}
    assert list(a) == ["brown", "z", "y", "x"]
    with pytest.raises(KeyError):
        OrderedSet().pop()
    with pytest.raises(TypeError):
        a |= ["no set"]


def test_every_set_is_one_to_who_asks() -> None:
    assert isinstance({1}, OrderedSet)
    assert not isinstance([1], OrderedSet)
    assert issubclass(set, OrderedSet)
