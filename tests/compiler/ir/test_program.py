"""Programs: roles, values, copies; boxings and local programs are parts of them."""

from __future__ import annotations

import operator

import pytest
import torch
from tests.compiler.ir.small_programs import Builder, show
from torch import fx
from torch.fx.node import map_arg

from partita.compiler.ir.boxing import box, is_box
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Phase,
    Program,
    Value,
    has_info,
    info,
    map_operands,
    op_name,
    operand_nodes,
    operands,
    placement_of,
    type_of,
    update_info,
    value_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType

aten = torch.ops.aten


def halves() -> tuple[Program, dict[str, fx.Node]]:
    """Return a program that adds the second half of a parameter to an input twice."""
    b = Builder(Mesh(tp=2))
    w = b.enter("w", "f32[8, 4]", "B", InputKind.PARAMETER)
    x = b.enter("x", "f32[4, 4]", "S(1)")
    cut = b.call(
        "split/0", aten.split.Tensor, (w, 4), "f32[4, 4]; f32[4, 4]", "B -> B, B"
    )
    second = b.graph.call_function(operator.getitem, (cut, 1))
    cat = b.call(
        "cat/0", aten.cat.default, ([x, second, second], 0), "f32[12, 4]",
        "S(1), S(1), S(1) -> S(1)",
    )  # fmt: skip
    b.leave(OutputKind.OUTPUT, "y", cat)
    b.leave(OutputKind.OUTPUT, "half", second)
    return b.program(), {"w": w, "x": x, "split": cut, "second": second, "cat": cat}


def test_placeholders_and_results_have_roles() -> None:
    program, nodes = halves()
    assert [(n, r.name) for n, r in program.placeholders()] == [
        (nodes["w"], "w"),
        (nodes["x"], "x"),
    ]
    assert [(n, r.name) for n, r in program.results()] == [
        (nodes["cat"], "y"),
        (nodes["second"], "half"),
    ]


def test_trained_are_the_parameters_with_a_gradient() -> None:
    b = Builder()
    w = b.enter("w", "f32[4]", kind=InputKind.PARAMETER)
    b.enter("frozen", "f32[4]", kind=InputKind.PARAMETER)
    b.leave(OutputKind.LOSS, "loss", w)
    b.leave(OutputKind.GRADIENT, "w", w)
    assert b.program().trained == {"w"}


def test_getitem_is_no_node_of_its_own() -> None:
    program, nodes = halves()
    assert list(program.nodes()) == [nodes[n] for n in ("w", "x", "split", "cat")]
    assert list(program.calls()) == [nodes["split"], nodes["cat"]]
    assert not has_info(nodes["second"])
    assert value_of(nodes["second"]) == Value(nodes["split"], 1)
    assert value_of(nodes["cat"]) == Value(nodes["cat"], 0)


def test_operands_keep_order_and_repeats() -> None:
    _, nodes = halves()
    half = Value(nodes["split"], 1)
    assert operands(nodes["cat"]) == [Value(nodes["x"], 0), half, half]
    assert operand_nodes(nodes["cat"]) == [
        nodes["x"],
        nodes["second"],
        nodes["second"],
    ]


def test_operands_come_in_the_order_of_torchs_own_walk() -> None:
    graph = fx.Graph()
    a, b, c, d, e = (graph.placeholder(name) for name in "abcde")
    args = (a, [b, (1, c), None], {"x": d}, slice(e, 2, a))
    node = graph.call_function(aten.cat.default, args, {"dim": b, "p": [c]})
    walked: list[fx.Node] = []

    def visit(leaf: fx.Node) -> fx.Node:
        walked.append(leaf)
        return leaf

    map_arg((node.args, node.kwargs), visit)
    assert operand_nodes(node) == walked == [a, b, c, d, e, a, b, c]


def test_values_have_types_and_placements() -> None:
    _, nodes = halves()
    assert type_of(Value(nodes["split"], 1)) == TensorType((4, 4), torch.float32)
    assert placement_of(Value(nodes["cat"], 0)) == Placement.parse("S(1)")


def test_map_operands_rewrites_by_position() -> None:
    program, nodes = halves()
    first = program.graph.call_function(operator.getitem, (nodes["split"], 0))
    map_operands(nodes["cat"], lambda i, leaf: first if i == 2 else leaf)
    assert operands(nodes["cat"])[1:] == [
        Value(nodes["split"], 1),
        Value(nodes["split"], 0),
    ]


def test_a_copy_is_independent() -> None:
    program, nodes = halves()
    other = program.copy()
    assert show(other) == show(program)
    for node in other.nodes():
        update_info(node, phase=Phase.UPDATE)
    other.graph.eliminate_dead_code()
    assert info(nodes["cat"]).phase is Phase.FORWARD
    assert set(other.graph.nodes).isdisjoint(program.graph.nodes)


def test_op_names() -> None:
    _, nodes = halves()
    assert op_name(nodes["w"]) == "placeholder"
    assert op_name(nodes["cat"]) == "aten.cat.default"


def test_with_mesh_is_another_program() -> None:
    program, _ = halves()
    assert program.with_mesh(Mesh(dp=4)).mesh == Mesh(dp=4)
    assert program.mesh == Mesh(tp=2)


def test_a_box_never_runs() -> None:
    program, nodes = halves()
    boxed = program.graph.call_function(box, (nodes["x"], "(S(1),)", "(B,)"))
    assert is_box(boxed)
    assert not is_box(nodes["cat"])
    with pytest.raises(
        AssertionError, match=r"box\(\(S\(1\),\) -> \(B,\)\) must be low"
    ):
        box(torch.ones(1), "(S(1),)", "(B,)")


def test_local_program_defaults_to_no_constants() -> None:
    program, _ = halves()
    local = LocalProgram(
        graph_module=program.graph_module,
        inputs=program.inputs,
        outputs=program.outputs,
        input_types=(),
        output_types=(),
        input_placements=(),
        output_placements=(),
        mesh=Mesh(tp=2),
        coordinates=(1,),
    )
    assert local.constants == {}
