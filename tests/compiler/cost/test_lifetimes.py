"""Lifetimes in a small program, counted by hand."""

from __future__ import annotations

import torch
from tests.compiler.ir.small_programs import Builder
from torch import fx

from partita.compiler.cost.lifetimes import Lifetime, held_bytes, lifetimes
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import OutputKind, Value
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType

aten = torch.ops.aten


def _value(node: fx.Node) -> Value:
    return Value(node, 0)


def test_a_tensor_lives_from_its_call_to_its_last_use() -> None:
    b = Builder(Mesh(tp=2))
    x = b.enter("x", "f32[8]")
    made = b.call("a", aten.relu.default, (x,), "f32[8]")
    later = b.call("b", aten.neg.default, (made,), "f32[8]")
    last = b.call("c", aten.add.Tensor, (later, made), "f32[8]")
    unused = b.call("d", aten.neg.default, (last,), "f32[8]")
    b.leave(OutputKind.OUTPUT, "c", last)
    found = lifetimes(b.program())
    assert found[_value(x)] == Lifetime(-1, 0, _value(x))
    assert found[_value(made)] == Lifetime(0, 2, _value(made))
    assert found[_value(later)] == Lifetime(1, 2, _value(later))
    assert found[_value(last)] == Lifetime(2, 4, _value(last))
    assert found[_value(unused)] == Lifetime(3, 3, _value(unused))


def test_views_keep_what_they_are_views_of() -> None:
    b = Builder(Mesh(tp=2))
    x = b.enter("x", "f32[8]")
    made = b.call("a", aten.relu.default, (x,), "f32[8]")
    view = b.call("view", aten.reshape.default, (made, [2, 4]), "f32[2, 4]")
    other = b.call("t", aten.permute.default, (view, [1, 0]), "f32[4, 2]")
    b.call("b", aten.neg.default, (x,), "f32[8]")
    b.call("c", aten.neg.default, (other,), "f32[4, 2]")
    found = lifetimes(b.program())
    assert found[_value(made)] == Lifetime(0, 4, _value(made))
    assert found[_value(other)] == Lifetime(2, 4, _value(made))


def test_the_largest_shard_counts() -> None:
    x = TensorType.parse("f32[6, 4]")
    assert held_bytes(x, Placement.parse("(S(0), S(1))"), Mesh(a=4, b=2)) == 2 * 2 * 4
    assert held_bytes(x, Placement.parse("(P, B)"), Mesh(a=4, b=2)) == 6 * 4 * 4
