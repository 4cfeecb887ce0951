"""The stages of backward calls: on programs by hand, and on every cut of models."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.compiler.ir.small_programs import Builder
from tests.models.captured import captured
from tests.models.more_models import MORE
from tests.models.pipelines import PIPELINES
from tests.slow import slow
from torch import fx

from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Phase,
    Program,
    info,
    operands,
    value_of,
)
from partita.compiler.search.cut_line import Line
from partita.compiler.search.stage_of import gradient_sums, stage_of

aten = torch.ops.aten
ROW = "f32[4]"
BACKWARD = Phase.BACKWARD_INPUT


class Ends(Builder):
    """A program of three forward calls ``a``, ``b``, ``c``, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.x = self.enter("x", ROW)
        self.scale = self.enter("scale", ROW, kind=InputKind.LOSS_SCALE)
        self.a = self.call("a/relu/0", aten.relu.default, [self.x], ROW)
        self.b = self.call("b/relu/0", aten.relu.default, [self.a], ROW)
        self.c = self.call("c/relu/0", aten.relu.default, [self.b], ROW)

    def back(self, key: str, *args: fx.Node) -> fx.Node:
        """Write a call of the backward; its op says nothing."""
        return self.call(key, aten.mul.Tensor, args, ROW, phase=BACKWARD)

    def stages(self) -> dict[str, int]:
        forward = {"a/relu/0": 0, "b/relu/0": 1, "c/relu/0": 2}
        found = stage_of(self.program(), forward)
        assert forward.items() <= found.items()
        return {key: stage for key, stage in found.items() if key not in forward}


def test_backward_runs_where_the_forward_did() -> None:
    ends = Ends()
    c = ends.back("c/relu/0~grad/mul/0", ends.scale, ends.c)
    b = ends.back("b/relu/0~grad/mul/0", c, ends.b)
    ends.back("a/relu/0~grad/mul/0", b, ends.a)
    assert [*ends.stages().values()] == [2, 1, 0]


def test_backward_is_never_later_than_the_gradient_it_is_handed() -> None:
    ends = Ends()
    b = ends.back("b/relu/0~grad/mul/0", ends.scale, ends.b)
    c = ends.back("c/relu/0~grad/mul/0", b, ends.c)
    ends.back("c/relu/0~grad/mul/1", c, ends.c)
    assert [*ends.stages().values()] == [1, 1, 1]


def test_call_of_an_unknown_one_runs_on_the_first_that_hands_it_gradients() -> None:
    ends = Ends()
    first = ends.back("gone/relu/0~grad/mul/0", ends.scale, ends.c)
    c = ends.back("c/relu/0~grad/mul/0", first, ends.c)
    b = ends.back("b/relu/0~grad/mul/0", c, ends.b)
    ends.back("~sum~grad/add/0", b, c)
    assert [*ends.stages().values()] == [2, 2, 1, 1]


def test_mask_runs_where_the_backward_first_uses_it() -> None:
    ends = Ends()
    mask = ends.back("a/relu/0~grad/mul/0", ends.a, ends.a)
    same = ends.back("gone/relu/0~grad/mul/0", mask, ends.x)
    c = ends.back("c/relu/0~grad/mul/0", ends.scale, ends.c)
    b = ends.back("b/relu/0~grad/mul/0", c, same)
    ends.back("a/relu/0~grad/mul/1", b, same)
    assert [*ends.stages().values()] == [2, 1, 0, 1, 1]


def test_backward_of_what_was_taken_apart_runs_where_its_last_part_does() -> None:
    ends = Ends()
    ends.back("drop/relu/0~grad/mul/0", ends.scale, ends.c)
    forward = {"a": 0, "drop/relu/0/draw1": 0, "drop/relu/0/draw2": 1, "c": 2}
    found = stage_of(ends.program(), forward)
    assert found["drop/relu/0~grad/mul/0"] == 1


def test_sums_of_a_gradient_are_found() -> None:
    ends = Ends()
    c = ends.back("c/relu/0~grad/mul/0", ends.scale, ends.c)
    b = ends.back("b/relu/0~grad/mul/0", c, ends.b)
    a = ends.back("a/relu/0~grad/mul/0", b, ends.a)
    add = aten.add.Tensor
    flow = ends.call("b/relu/0~grad/add/0", add, [b, c], ROW, phase=BACKWARD)
    half = ends.call("b/relu/0~grad/add/1", add, [flow, c], ROW, phase=BACKWARD)
    whole = ends.call("a/relu/0~grad/add/0", add, [half, a], ROW, phase=BACKWARD)
    other = ends.call("a/relu/0~grad/add/1", add, [a, ends.a], ROW, phase=BACKWARD)
    ends.back("a/relu/0~grad/mul/1", flow, ends.a)
    ends.leave(OutputKind.GRADIENT, "w", whole)
    ends.leave(OutputKind.GRADIENT, "v", other)
    assert gradient_sums(ends.program()) == {whole, half, flow}


MODELS = [*PIPELINES, "gpt2", "llama", "t5", slow("unet"), slow("mixtral")]


@cache
def program_of(name: str) -> Program:
    if name in ("gpt2", "llama"):
        return captured(name)[1].program
    model, args, kwargs = (PIPELINES | MORE)[name]()
    return capture(model, args, kwargs).program


def check_legal(program: Program, stages: dict[str, int]) -> None:
    for node in program.calls():
        mine = info(node)
        for value in operands(node):
            made = info(value.node)
            if value.node.op == "call_function" and made.phase is Phase.FORWARD:
                is_later = stages[made.key] <= stages[mine.key]
                assert is_later or mine.phase is not Phase.FORWARD, mine.key
            elif value.node.op == "call_function":
                assert stages[mine.key] <= stages[made.key], mine.key


@pytest.mark.parametrize("name", MODELS)
def test_cuts_of_a_model_are_legal(name: str) -> None:
    program = program_of(name)
    line = Line.of(program)
    count = len(line.forward)
    check_legal(program, line.position)  # then so is every cut, if these are its stages
    for cut in range(1, count, 1 if count < 60 else count // 10):
        forward = {key: int(i >= cut) for i, key in enumerate(line.forward)}
        stages = stage_of(program, forward)
        check_legal(program, stages)
        assert stages == {key: int(i >= cut) for key, i in line.position.items()}


@pytest.mark.parametrize("name", MODELS)
def test_gradient_of_a_parameter_is_made_next_to_a_use_of_it(name: str) -> None:
    program = program_of(name)
    line, sums = Line.of(program), gradient_sums(program)
    module_of = {info(node).key: info(node).module for node in program.calls()}
    uses: dict[fx.Node, set[str]] = {}
    for node in program.calls():
        for value in operands(node):
            if info(node).phase is Phase.FORWARD:
                uses.setdefault(value.node, set()).add(info(node).module)
    of_name = {role.name: node for node, role in program.placeholders()}
    for node, role in program.results():
        made = value_of(node).node
        if role.kind is OutputKind.GRADIENT and made not in sums:
            beside = line.forward[line.position[info(made).key]]
            assert module_of[beside] in uses[of_name[role.name]], role.name
