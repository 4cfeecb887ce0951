"""One boxing per tensor and wanted placement, where it is first wanted."""

from __future__ import annotations

import operator

import pytest
import torch
from tests.compiler.ir.small_programs import Builder, show
from tests.passes.small_documents import plan_for

from partita.compiler.errors import BadPlan
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Phase,
    Program,
    info,
    operands,
    value_of,
)
from partita.compiler.plan.document import Boxing
from partita.passes.base import run_sequence
from partita.passes.insert_collectives import InsertCollectives

aten = torch.ops.aten
MESH = Mesh(tp=2)
Listed = tuple[str, str, str]


def insert(
    program: Program, outputs: dict[str, str], *boxings: Listed
) -> tuple[Program, tuple[Boxing, ...]]:
    signatures = {
        info(node).key: found
        for node in program.nodes()
        if (found := info(node).signature) is not None
    }
    plan = plan_for(program, MESH, signatures, outputs, boxings)
    return run_sequence(program, [InsertCollectives(plan)]), plan.boxings


def row_parallel() -> Program:
    b = Builder(MESH)
    w = b.enter("w", "f32[4, 6]", "S(0)", InputKind.PARAMETER)
    x = b.enter("x", "f32[8, 4]", "S(1)")
    mm = b.call("mm/0", aten.mm.default, (x, w), "f32[8, 6]", "S(1), S(0) -> P")
    relu = b.call("relu/0", aten.relu.default, (mm,), "f32[8, 6]", "B -> B")
    b.leave(OutputKind.OUTPUT, "y", relu)
    return b.program()


def test_before_and_after() -> None:
    before = row_parallel()
    assert show(before) == (
        "mm/0: f32[8, 6] (P(sum),) = aten.mm.default(input:x, parameter:w)\n"
        "relu/0: f32[8, 6] (B,) = aten.relu.default(mm/0)\n"
        "output:y = relu/0"
    )
    after, _ = insert(before, {"output:y": "S(0)"}, ("mm/0", "B", "all_reduce"), (
        "relu/0", "S(0)", "slice"
    ))  # fmt: skip
    assert show(after) == (
        "mm/0: f32[8, 6] (P(sum),) = aten.mm.default(input:x, parameter:w)\n"
        "mm/0#0 -> (B,): f32[8, 6] (B,) = box(mm/0)\n"
        "relu/0: f32[8, 6] (B,) = aten.relu.default(mm/0#0 -> (B,))\n"
        "relu/0#0 -> (S(0),): f32[8, 6] (S(0),) = box(relu/0)\n"
        "output:y = relu/0#0 -> (S(0),)"
    )
    assert "box" not in show(before)


def test_where_all_agree_nothing_is_inserted() -> None:
    b = Builder(MESH)
    x = b.enter("x", "f32[8, 4]", "S(0)")
    relu = b.call("relu/0", aten.relu.default, (x,), "f32[8, 4]", "S(0) -> S(0)")
    b.leave(OutputKind.OUTPUT, "y", relu)
    program = b.program()
    assert show(insert(program, {"output:y": "S(0)"})[0]) == show(program)


def test_consumers_share_one_boxing_before_the_first() -> None:
    b = Builder(MESH)
    x = b.enter("x", "f32[8, 4]", "S(0)")
    early = b.call("neg/0", aten.neg.default, (x,), "f32[8, 4]", "S(0) -> S(0)")
    a = b.call("relu/0", aten.relu.default, (x,), "f32[8, 4]", "B -> B")
    c = b.call("exp/0", aten.exp.default, (x,), "f32[8, 4]", "B -> B")
    both = b.call("add/0", aten.add.Tensor, (x, x), "f32[8, 4]", "B, S(1) -> B")
    for name, node in (("e", early), ("a", a), ("c", c), ("both", both), ("x", x)):
        b.leave(OutputKind.OUTPUT, name, node)
    outputs = {f"output:{name}": "B" for name in ("a", "c", "both", "x")}
    after, _ = insert(
        b.program(),
        outputs | {"output:e": "S(0)"},
        ("input:x", "B", "all_gather"),
        ("input:x", "S(1)", "all_to_all"),
    )
    assert show(after) == (
        "neg/0: f32[8, 4] (S(0),) = aten.neg.default(input:x)\n"
        "input:x#0 -> (B,): f32[8, 4] (B,) = box(input:x)\n"
        "relu/0: f32[8, 4] (B,) = aten.relu.default(input:x#0 -> (B,))\n"
        "exp/0: f32[8, 4] (B,) = aten.exp.default(input:x#0 -> (B,))\n"
        "input:x#0 -> (S(1),): f32[8, 4] (S(1),) = box(input:x)\n"
        "add/0: f32[8, 4] (B,) = "
        "aten.add.Tensor(input:x#0 -> (B,), input:x#0 -> (S(1),))\n"
        "output:e = neg/0\n"
        "output:a = relu/0\n"
        "output:c = exp/0\n"
        "output:both = add/0\n"
        "output:x = input:x#0 -> (B,)"
    )


def test_a_gradient_is_boxed_right_where_it_is_made() -> None:
    b = Builder(MESH)
    w = b.enter("w", "f32[8, 4]", "B", InputKind.PARAMETER)
    first = b.call("a~grad", aten.neg.default, (w,), "f32[8, 4]", "P -> P", WEIGHT)
    other = b.call("b~grad", aten.exp.default, (w,), "f32[8, 4]", "B -> B", WEIGHT)
    b.leave(OutputKind.GRADIENT, "w", first)
    b.leave(OutputKind.OUTPUT, "y", other)
    after, _ = insert(
        b.program(),
        {"gradient:w": "B", "output:y": "B"},
        ("parameter:w", "P", "keep_first"),
        ("a~grad", "B", "all_reduce"),
    )
    assert [info(node).key for node in after.calls()] == [
        "parameter:w#0 -> (P(sum),)",
        "a~grad",
        "a~grad#0 -> (B,)",
        "b~grad",
    ]


WEIGHT = Phase.BACKWARD_WEIGHT


def test_a_boxing_belongs_to_the_phase_of_its_first_user() -> None:
    b = Builder(MESH)
    x = b.enter("x", "f32[8, 4]", "S(0)")
    back = b.call("relu~grad", aten.relu.default, (x,), "f32[8, 4]", "B -> B", WEIGHT)
    b.leave(OutputKind.OUTPUT, "y", back)
    program = b.program()
    after, (boxing,) = insert(
        program, {"output:y": "B"}, ("input:x", "B", "all_gather")
    )
    (boxed, _) = after.calls()
    fact = info(boxed)
    assert fact.key == boxing.key
    assert fact.phase is WEIGHT
    assert str(fact.signature) == "(S(0),) -> (B,)"
    assert boxed.args[1:] == ("(S(0),)", "(B,)")


def test_an_input_may_leave_in_another_placement() -> None:
    b = Builder(MESH)
    b.leave(OutputKind.OUTPUT, "y", b.enter("x", "f32[8, 4]", "S(0)"))
    b.leave(OutputKind.OUTPUT, "z", b.enter("late", "f32[2]", "B"))
    after, _ = insert(
        b.program(),
        {"output:y": "B", "output:z": "B"},
        ("input:x", "B", "all_gather"),
    )
    assert show(after) == (
        "input:x#0 -> (B,): f32[8, 4] (B,) = box(input:x)\n"
        "output:y = input:x#0 -> (B,)\noutput:z = input:late"
    )


def test_results_of_one_node_are_boxed_each() -> None:
    b = Builder(MESH)
    x = b.enter("x", "f32[8, 4]", "S(0)")
    cut = b.call(
        "split/0", aten.split_with_sizes.default, (x, [2, 2], 1),
        "f32[8, 2]; f32[8, 2]", "S(0) -> S(0), S(0)",
    )  # fmt: skip
    halves = [b.graph.call_function(operator.getitem, (cut, i)) for i in range(2)]
    both = b.call("add/0", aten.add.Tensor, halves, "f32[8, 2]", "S(0), S(0) -> S(0)")
    last = b.call("relu/0", aten.relu.default, halves[1:], "f32[8, 2]", "B -> B")
    b.leave(OutputKind.OUTPUT, "y", both)
    b.leave(OutputKind.OUTPUT, "z", last)
    after, _ = insert(
        b.program(),
        {"output:y": "S(0)", "output:z": "B"},
        ("split/0#1", "B", "all_gather"),
    )
    (used,) = [n for n in after.calls() if info(n).key == "relu/0"]
    (value,) = operands(used)
    assert info(value.node).key == "split/0#1 -> (B,)"
    (source,) = operands(value.node)
    assert (info(source.node).key, source.index) == ("split/0", 1)
    assert [value_of(n).node.target for n, _ in after.results()] == [
        aten.add.Tensor,
        aten.relu.default,
    ]


def test_boxing_that_the_plan_does_not_list_is_refused() -> None:
    with pytest.raises(BadPlan) as caught:
        insert(row_parallel(), {"output:y": "B"})
    assert str(caught.value) == "boxings: the plan lists no boxing 'mm/0#0 -> (B,)'"


def test_output_that_the_plan_does_not_list_is_refused() -> None:
    with pytest.raises(BadPlan) as caught:
        insert(row_parallel(), {}, ("mm/0", "B", "all_reduce"))
    assert str(caught.value) == "outputs: the plan has no output:y"
