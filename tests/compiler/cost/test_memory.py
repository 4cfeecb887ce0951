"""Peak memory of small programs, counted by hand."""

from __future__ import annotations

import operator

import torch
from tests.compiler.ir.small_programs import Builder

from partita.compiler.cost.memory import peak_bytes
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Program,
    Value,
    info,
    placement_of,
)
from partita.compiler.ir.sbp import Placement

aten = torch.ops.aten
MESH = Mesh(tp=2)
KB = 1024


def peak(program: Program, optimizer: str = "sgd") -> dict[str, int]:
    placements: dict[Value, Placement] = {}
    for node in program.nodes():
        for index, type_ in enumerate(info(node).types):
            if type_ is not None:
                placements[Value(node, index)] = placement_of(Value(node, index))
    return peak_bytes(program, placements, MESH, optimizer)


def training(stored: str) -> Program:
    b = Builder(MESH)
    w = b.enter("w", "f32[16, 16]", stored, InputKind.PARAMETER)
    b.enter("frozen", "f32[256]", "B", InputKind.PARAMETER)
    b.enter("count", "f32[256]", "B", InputKind.BUFFER)
    grad = b.call(
        "neg/0", aten.neg.default, (w,), "f32[16, 16]", f"{stored} -> {stored}"
    )
    b.leave(OutputKind.GRADIENT, "w", grad)
    return b.program()


def test_state_lives_all_the_time() -> None:
    assert peak(training("B"), "adamw") == {
        "parameters": 2 * KB,
        "gradients": KB,
        "optimizer": 2 * KB,
        "buffers": KB,
        "activations": KB,
    }


def test_state_is_counted_per_rank() -> None:
    parts = peak(training("S(0)"), "adamw")
    assert parts["parameters"] == KB + KB // 2
    assert (parts["gradients"], parts["optimizer"]) == (KB // 2, KB)


def test_sgd_keeps_no_moments() -> None:
    assert peak(training("B"))["optimizer"] == 0


def chain(*steps: str) -> int:
    """Return the activations of elementwise steps ``name=argument+argument``."""
    b = Builder(MESH)
    made, name = {"x": b.enter("x", "f32[256]", "B")}, "x"
    for step in steps:
        name, _, used = step.partition("=")
        args = [made[arg] for arg in used.split("+")]
        ops = {1: aten.relu.default, 2: aten.add.Tensor, 3: aten.where.self}
        placed = f"{', '.join('B' for _ in args)} -> B"
        made[name] = b.call(name, ops[len(args)], args, "f32[256]", placed)
    b.leave(OutputKind.OUTPUT, "y", made[name])
    return peak(b.program())["activations"] // KB


def test_a_tensor_dies_after_its_last_use() -> None:
    assert chain("a=x") == 1
    assert chain("a=x", "b=a", "c=b", "d=c") == 2
    assert chain("a=x", "b=a", "c=b", "d=c+a") == 3
    assert chain("a=x", "b=x", "c=x", "d=a+b+c") == 4


def test_views_hold_no_memory_but_keep_their_owner() -> None:
    b = Builder(MESH)
    x = b.enter("x", "f32[16, 16]", "S(0)")
    a = b.call("a", aten.relu.default, (x,), "f32[16, 16]", "S(0) -> S(0)")
    view = b.call("view", aten.reshape.default, (a, [256]), "f32[256]", "S(0) -> S(0)")
    cut = b.call(
        "cut", aten.split_with_sizes.default, (view, [128, 128]), "f32[128]; f32[128]",
        "B -> B, B",
    )  # fmt: skip
    half = b.graph.call_function(operator.getitem, (cut, 1))
    c = b.call("c", aten.relu.default, (x,), "f32[16, 16]", "S(0) -> S(0)")
    d = b.call("d", aten.sum.default, (half,), "f32[]", "B -> B")
    b.leave(OutputKind.OUTPUT, "c", c)
    b.leave(OutputKind.OUTPUT, "d", d)
    # a lives until d, which reads it through both views; c and d leave
    assert peak(b.program())["activations"] == KB // 2 + KB // 2 + 4


def test_what_leaves_as_a_view_keeps_its_owner() -> None:
    b = Builder(MESH)
    x = b.enter("x", "f32[256]", "B")
    a = b.call("a", aten.relu.default, (x,), "f32[256]", "B -> B")
    view = b.call("view", aten.reshape.default, (a, [16, 16]), "f32[16, 16]", "B -> B")
    c = b.call("c", aten.relu.default, (x,), "f32[256]", "B -> B")
    b.leave(OutputKind.OUTPUT, "view", view)
    b.leave(OutputKind.OUTPUT, "c", c)
    assert peak(b.program())["activations"] == 2 * KB
