"""The line of a program: its order, and what crosses its boundaries."""

from __future__ import annotations

import operator

import torch
from tests.compiler.ir.small_programs import Builder

from partita.compiler.ir.program import InputKind, OutputKind, Phase
from partita.compiler.search.cut_line import Line

aten = torch.ops.aten
BIG, SMALL = "f32[8]", "f32[2]"  # 32 and 8 bytes
PARAMETER = InputKind.PARAMETER
BACKWARD = Phase.BACKWARD_INPUT


def test_what_is_apart_from_the_batch_waits_for_its_first_user() -> None:
    made = Builder()
    x, w = made.enter("x", BIG), made.enter("w", BIG, kind=PARAMETER)
    places = made.call("places", aten.arange.default, [8], BIG)
    cast = made.call("cast", aten.relu.default, [w], BIG)
    mask = made.call("mask", aten.relu.default, [x], BIG)
    both = made.call("both", aten.mul.Tensor, [places, cast], BIG)
    unused = made.call("unused", aten.relu.default, [w], BIG)
    a = made.call("a", aten.relu.default, [x], BIG)
    b = made.call("b", aten.mul.Tensor, [a, both], BIG)
    c = made.call("c", aten.mul.Tensor, [b, mask], BIG)
    d = made.call("d", aten.mul.Tensor, [c, cast], BIG)
    made.leave(OutputKind.OUTPUT, "d", d)
    made.leave(OutputKind.OUTPUT, "unused", unused)
    line = Line.of(made.program())
    order = ["mask", "unused", "a", "places", "cast", "both", "b", "c", "d"]
    assert [*line.forward] == order
    assert line.position == {key: i for i, key in enumerate(order)}
    assert [sorted(names) for names in line.used] == [
        *([], ["w"], [], [], ["w"], [], [], [], [])
    ]
    crossing = [0, 32, 32, 64, 96, 128, 128, 96, 64, 0]
    assert [*line.hop_bytes] == crossing


def test_values_cross_there_and_gradients_back() -> None:
    made = Builder()
    x = made.enter("x", BIG)
    scale = made.enter("scale", BIG, kind=InputKind.LOSS_SCALE)
    a = made.call("a/op/0", aten.relu.default, [x], BIG)
    b = made.call("b/op/0", aten.topk.default, [a, 2], f"{SMALL}; {SMALL}")
    top = made.graph.call_function(operator.getitem, (b, 0))
    c = made.call("c/op/0", aten.relu.default, [top], SMALL)
    d = made.call("d/op/0", aten.mul.Tensor, [c, top], SMALL)
    back = made.call(
        "d/op/0~grad/op/0", aten.mul.Tensor, [scale, c], SMALL, None, BACKWARD
    )
    third = made.call(
        "c/op/0~grad/op/0", aten.mul.Tensor, [back, c], SMALL, None, BACKWARD
    )
    made.call("a/op/0~grad/op/0", aten.mul.Tensor, [third, a], BIG, None, BACKWARD)
    made.leave(OutputKind.LOSS, "loss", d)
    line = Line.of(made.program())
    # a | one result of b, and c's gradient | that, c, and d's gradient
    assert line.hop_bytes == (0, 32 + 8, 8 + 8, 8 + 8 + 8, 0)


def test_addends_of_a_parameters_gradient_stay_where_they_are() -> None:
    made = Builder()
    x, w = made.enter("x", SMALL), made.enter("w", BIG, kind=PARAMETER)
    scale = made.enter("scale", SMALL, kind=InputKind.LOSS_SCALE)
    a = made.call("a/op/0", aten.mul.Tensor, [x, w], SMALL)
    made.call("b/op/0", aten.mul.Tensor, [a, w], SMALL)
    back = made.call(
        "b/op/0~grad/op/0", aten.mul.Tensor, [scale, w], SMALL, None, BACKWARD
    )
    last = made.call(
        "b/op/0~grad/op/1", aten.mul.Tensor, [scale, a], BIG, None, BACKWARD
    )
    first = made.call(
        "a/op/0~grad/op/0", aten.mul.Tensor, [back, x], BIG, None, BACKWARD
    )
    key, add = "a/op/0~grad/add/0", aten.add.Tensor
    whole = made.call(key, add, [last, first], BIG, None, BACKWARD)
    made.leave(OutputKind.GRADIENT, "w", whole)
    line = Line.of(made.program())
    assert line.position[key] == 0
    assert line.hop_bytes == (0, 8 + 8, 0)
    assert line.used == (frozenset({"w"}), frozenset({"w"}))
