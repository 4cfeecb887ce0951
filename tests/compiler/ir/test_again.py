"""Nodes that are made again stand before what they are needed for in the backward."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from tests.compiler.ir.small_programs import Builder, show

from partita.compiler.invariants import well_formed
from partita.compiler.ir.again import make_again, needed_again
from partita.compiler.ir.program import OutputKind, Phase, Program, info

aten = torch.ops.aten
BACK = Phase.BACKWARD_INPUT
SHAPE = "f32[8, 4]"


def chain() -> Program:
    """Return exp, relu, sin one after another, and gradients in the other order."""
    b = Builder()
    x = b.enter("x", SHAPE)
    exp = b.call("exp", aten.exp.default, (x,), SHAPE)
    relu = b.call("relu", aten.relu.default, (exp,), SHAPE)
    sin = b.call("sin", aten.sin.default, (relu,), SHAPE)
    seed = b.call("seed", aten.ones_like.default, (sin,), SHAPE, phase=BACK)
    first = b.call("sin~grad", aten.mul.Tensor, (seed, relu), SHAPE, phase=BACK)
    second = b.call("relu~grad", aten.mul.Tensor, (first, relu), SHAPE, phase=BACK)
    third = b.call("exp~grad", aten.mul.Tensor, (second, exp), SHAPE, phase=BACK)
    b.leave(OutputKind.OUTPUT, "y", sin)
    b.leave(OutputKind.OUTPUT, "relu", relu)
    b.leave(OutputKind.GRADIENT, "x", third)
    return b.program()


def keys(program: Program) -> Sequence[str]:
    return [info(node).key for node in program.calls()]


def test_a_clone_stands_before_its_first_user_and_works_on_clones() -> None:
    before = chain()
    text = show(before)
    after = make_again(before, {"exp", "relu"})
    well_formed(after)
    assert show(after) == (
        "exp: f32[8, 4] = aten.exp.default(input:x)\n"
        "relu: f32[8, 4] = aten.relu.default(exp)\n"
        "sin: f32[8, 4] = aten.sin.default(relu)\n"
        "seed: f32[8, 4] = aten.ones_like.default(sin)\n"
        "exp~again: f32[8, 4] = aten.exp.default(input:x)\n"
        "relu~again: f32[8, 4] = aten.relu.default(exp~again)\n"
        "sin~grad: f32[8, 4] = aten.mul.Tensor(seed, relu~again)\n"
        "relu~grad: f32[8, 4] = aten.mul.Tensor(sin~grad, relu~again)\n"
        "exp~grad: f32[8, 4] = aten.mul.Tensor(relu~grad, exp~again)\n"
        "output:y = sin\n"
        "output:relu = relu\n"
        "gradient:x = exp~grad"
    )
    assert show(before) == text
    phases = [info(n).phase for n in after.calls() if info(n).key.endswith("~again")]
    assert phases == [BACK, BACK]


def test_a_clone_works_on_what_is_kept() -> None:
    after = make_again(chain(), {"relu"})
    assert "relu~again: f32[8, 4] = aten.relu.default(exp)\n" in show(after)
    assert keys(after)[4:6] == ["relu~again", "sin~grad"]
    late = keys(make_again(chain(), {"exp"}))
    assert late.index("exp~again") == late.index("exp~grad") - 1


def test_clones_for_one_node_stand_in_the_order_of_the_forward() -> None:
    """Not each right before its own user, as if one branch followed the other."""
    b = Builder()
    x = b.enter("x", SHAPE)
    begun = [b.call(f"begun{i}", aten.exp.default, (x,), SHAPE) for i in range(2)]
    ended = [
        b.call(f"ended{i}", aten.exp.default, (y,), SHAPE) for i, y in enumerate(begun)
    ]
    both = b.call("both", aten.add.Tensor, tuple(ended), SHAPE)
    back = b.call("back", aten.mul.Tensor, tuple(ended), SHAPE, phase=BACK)
    b.leave(OutputKind.OUTPUT, "y", both)
    b.leave(OutputKind.GRADIENT, "x", back)
    after = make_again(b.program(), {"begun0", "begun1", "ended0", "ended1"})
    clones = ["begun0~again", "begun1~again", "ended0~again", "ended1~again"]
    assert keys(after)[-5:] == [*clones, "back"]


def test_only_what_backward_uses_is_needed_again() -> None:
    program = chain()
    assert needed_again(program, {"exp", "relu", "sin"}) == ("exp", "relu", "sin")
    assert needed_again(program, {"exp"}) == ("exp",)
    assert needed_again(program, {"input:x", "sin~grad"}) == ()
    b = Builder()
    x = b.enter("x", SHAPE)
    first = b.call("first", aten.exp.default, (x,), SHAPE)
    second = b.call("second", aten.exp.default, (first,), SHAPE)
    b.call("second~grad", aten.exp.default, (second,), SHAPE, phase=BACK)
    b.leave(OutputKind.OUTPUT, "y", second)
    assert needed_again(b.program(), {"first"}) == ()
    assert needed_again(b.program(), {"first", "second"}) == ("first", "second")


def test_each_result_of_a_clone_goes_to_its_users() -> None:
    b = Builder()
    x = b.enter("x", SHAPE)
    cut = b.call(
        "cut", aten.split_with_sizes.default, (x, [2, 2], 1), "f32[8, 2]; f32[8, 2]"
    )
    left, right = (b.graph.call_function(operator.getitem, (cut, i)) for i in range(2))
    both = b.call("both", aten.add.Tensor, (left, right), "f32[8, 2]")
    back = b.call("back", aten.mul.Tensor, (both, right), "f32[8, 2]", phase=BACK)
    b.leave(OutputKind.OUTPUT, "y", both)
    b.leave(OutputKind.GRADIENT, "x", back)
    after = make_again(b.program(), {"cut"})
    well_formed(after)
    assert show(after).splitlines()[1:4] == [
        "both: f32[8, 2] = aten.add.Tensor(cut, cut#1)",
        "cut~again: f32[8, 2], f32[8, 2] = aten.split_with_sizes.default(input:x)",
        "back: f32[8, 2] = aten.mul.Tensor(both, cut~again#1)",
    ]
    chosen = [n.args[1] for n in after.graph.nodes if n.target is operator.getitem]
    assert chosen == [0, 1, 1]  # nothing is chosen for nobody
