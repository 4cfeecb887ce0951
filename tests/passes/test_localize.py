"""From the logical graph to a rank's: sizes shrink, boxings become collectives."""

from __future__ import annotations

import operator

import pytest
import torch
from tests.compiler.ir.small_programs import Builder, signature

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.step import Step
from partita.compiler.errors import BadPlan
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.boxing import box, is_box
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    OutputKind,
    Program,
    has_info,
    info,
    operands,
    type_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.rules.table import default_rules
from partita.passes.localize import localize
from partita.runtime.feeds import FeedKey
from partita.runtime.shards import assemble, take_shard
from partita.runtime.virtual import run_all

aten = torch.ops.aten
TP = Mesh(tp=2)
at = Placement.parse


def lowerings(program: Program, mesh: Mesh) -> dict[str, tuple[Step, ...]]:
    """Return the cheapest steps of every boxing."""
    found: dict[str, tuple[Step, ...]] = {}
    for node in program.calls():
        if is_box(node):
            (value,) = operands(node)
            signature = info(node).signature
            assert signature is not None
            (made,), (wanted,) = signature.operands, signature.results
            assert wanted is not None
            hardware = load_hardware("cpu-gloo")
            route = cheapest_steps(type_of(value), made, wanted, mesh, hardware)
            found[info(node).key] = route.steps
    return found


def ranks(program: Program) -> list[LocalProgram]:
    mesh = program.mesh
    assert mesh is not None
    steps = lowerings(program, mesh)
    return [
        localize(program, coords, default_rules, steps)
        for coords in mesh.all_coordinates()
    ]


def run(program: Program, **values: torch.Tensor) -> list[torch.Tensor]:
    """Run every rank on its shards; return the logical outputs."""
    mesh = program.mesh
    assert mesh is not None
    programs = ranks(program)
    feeds: list[dict[FeedKey, torch.Tensor]] = []
    for local in programs:
        fed: dict[FeedKey, torch.Tensor] = {}
        for role, placement in zip(local.inputs, local.input_placements, strict=True):
            if placement is not None:
                whole = values[role.name]
                shard = take_shard(whole, placement, mesh, local.coordinates)
                fed[role.kind, role.name] = shard
        feeds.append(fed)
    outputs = run_all(programs, feeds)
    found: list[torch.Tensor] = []
    first = programs[0]
    for position, placement in enumerate(first.output_placements):
        type_ = first.output_types[position]
        shards = [part for out in outputs if (part := out[position]) is not None]
        assert placement is not None
        assert type_ is not None
        for shard, coords in zip(shards, mesh.all_coordinates(), strict=True):
            assert shard.shape == shard_shape(type_.shape, placement, mesh, coords)
        found.append(assemble(shards, type_.shape, placement, mesh))
    return found


def text(local: LocalProgram) -> list[str]:
    """Return the calls of a rank's graph: name, op, arguments."""
    return [
        f"{node.name} = {node.target}{node.args}".replace("_c10d_functional.", "")
        for node in local.graph_module.graph.nodes
        if node.op == "call_function"
    ]


def reshaped(mesh: Mesh, split: str) -> Program:
    b = Builder(mesh)
    x = b.enter("x", "f32[8, 6]", split)
    view = b.call(
        "view/0", aten.reshape.default, (x, [8, 3, 2]), "f32[8, 3, 2]",
        f"{split} -> {split}",
    )  # fmt: skip
    whole = " ".join("B" for _ in mesh.names)
    made = signature(f"{split} -> {whole}")
    args = (view, str(made.operands[0]), str(made.results[0]))
    key = f"view/0#0 -> {made.results[0]}"
    boxed = b.call(key, box, args, "f32[8, 3, 2]", f"{split} -> {whole}")
    b.leave(OutputKind.OUTPUT, "y", boxed)
    return b.program()


def test_before_and_after() -> None:
    first, second = ranks(reshaped(TP, "S(0)"))
    assert text(first) == text(second) == [
        "reshape_default = aten.reshape.default(x, [4, 3, 2])",
        "contiguous_default = aten.contiguous.default(reshape_default,)",
        "all_gather_into_tensor_default = all_gather_into_tensor.default("
        "contiguous_default, 2, 'stage0/tp')",
        "wait_tensor_default = wait_tensor.default(all_gather_into_tensor_default,)",
    ]  # fmt: skip


def test_uneven_shards_have_their_own_sizes() -> None:
    program = reshaped(Mesh(tp=3), "S(0)")
    sizes = [text(local)[0] for local in ranks(program)]
    assert sizes == [
        f"reshape_default = aten.reshape.default(x, [{rows}, 3, 2])"
        for rows in (3, 3, 2)
    ]
    x = torch.arange(48.0).reshape(8, 6)
    (y,) = run(program, x=x)
    assert torch.equal(y, x.reshape(8, 3, 2))


def test_two_axes() -> None:
    x = torch.arange(48.0).reshape(8, 6)
    (y,) = run(reshaped(Mesh(dp=2, tp=2), "S(0) S(0)"), x=x)
    assert torch.equal(y, x.reshape(8, 3, 2))


def mlp(mesh: Mesh = TP) -> Program:
    """Return relu(x @ up) @ down, columns then rows, and its sliced result."""
    b = Builder(mesh)
    up = b.enter("up", "f32[4, 6]", "S(1)", InputKind.PARAMETER)
    down = b.enter("down", "f32[6, 4]", "S(0)", InputKind.PARAMETER)
    x = b.enter("x", "f32[8, 4]", "B")
    h = b.call("mm/0", aten.mm.default, (x, up), "f32[8, 6]", "B, S(1) -> S(1)")
    h = b.call("relu/0", aten.relu.default, (h,), "f32[8, 6]", "S(1) -> S(1)")
    y = b.call("mm/1", aten.mm.default, (h, down), "f32[8, 4]", "S(1), S(0) -> P")
    key = "mm/1#0 -> (B,)"
    full = b.call(key, box, (y, "(P(sum),)", "(B,)"), "f32[8, 4]", "P -> B")
    key = "mm/1#0 -> (S(0),)"
    part = b.call(key, box, (full, "(B,)", "(S(0),)"), "f32[8, 4]", "B -> S(0)")
    b.leave(OutputKind.OUTPUT, "whole", full)
    b.leave(OutputKind.OUTPUT, "part", part)
    return b.program()


def values() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"up": (4, 6), "down": (6, 4), "x": (8, 4)}
    return {
        name: torch.randint(-4, 5, shape, generator=generator).float()
        for name, shape in shapes.items()
    }


def test_ranks_together_compute_the_whole() -> None:
    tensors = values()
    wanted = torch.relu(tensors["x"] @ tensors["up"]) @ tensors["down"]
    for found in run(mlp(), **tensors):
        assert torch.equal(found, wanted)


def test_coordinates_enter_only_where_they_are_used() -> None:
    needs, does_not = ranks(mlp())[0], ranks(reshaped(TP, "S(0)"))[0]
    assert needs.inputs[-1] == InputRole(InputKind.COORDINATE, "tp")
    assert needs.input_types[-1] is None
    assert needs.input_placements[-1] is None
    assert [role.name for role in does_not.inputs] == ["x"]


def test_ranks_with_equal_shards_run_equal_programs() -> None:
    first, second = ranks(mlp())
    assert text(first) == text(second)
    assert [first.coordinates, second.coordinates] == [(0,), (1,)]


def test_logical_types_and_placements_stand_beside_the_program() -> None:
    local = ranks(mlp())[1]
    assert [str(t) for t in local.input_types[:3]] == [
        "f32[4, 6]",
        "f32[6, 4]",
        "f32[8, 4]",
    ]
    assert local.input_placements[:3] == (at("S(1)"), at("S(0)"), at("B"))
    assert [str(t) for t in local.output_types] == ["f32[8, 4]"] * 2
    assert local.output_placements == (at("B"), at("S(0)"))
    assert local.outputs == mlp().outputs


def test_infos_hold_local_types_and_keep_keys() -> None:
    local = ranks(mlp())[0]
    found = {
        info(node).key: [str(t) for t in info(node).types]
        for node in local.graph_module.graph.nodes
        if has_info(node)
    }
    assert found["parameter:up"] == ["f32[4, 3]"]
    assert found["relu/0"] == ["f32[8, 3]"]
    assert found["mm/1"] == ["f32[8, 4]"]
    assert found["mm/1#0 -> (S(0),)"] == ["f32[4, 4]"]
    assert found["mm/1#0 -> (B,)/all_reduce_default"] == ["f32[8, 4]"]


def test_the_logical_program_stays_as_it_was() -> None:
    program = mlp()
    before = str(program.graph)
    ranks(program)
    assert str(program.graph) == before


def test_boxing_that_the_plan_says_nothing_of_is_refused() -> None:
    with pytest.raises(BadPlan) as caught:
        localize(mlp(), (0,), default_rules, {})
    assert str(caught.value) == ("boxings: the plan says nothing of 'mm/1#0 -> (B,)'")


def test_pieces_of_a_split_shrink() -> None:
    b = Builder(TP)
    x = b.enter("x", "f32[4, 12]", "S(1;4|8)")
    cut = b.call(
        "split/0", aten.split_with_sizes.default, (x, [4, 8], 1),
        "f32[4, 4]; f32[4, 8]", "S(1;4|8) -> S(1), S(1)",
    )  # fmt: skip
    b.leave(OutputKind.OUTPUT, "y", b.graph.call_function(operator.getitem, (cut, 0)))
    b.leave(OutputKind.OUTPUT, "z", b.graph.call_function(operator.getitem, (cut, 1)))
    program = b.program()
    assert "[2, 4]" in text(ranks(program)[0])[0]
    x = torch.arange(48.0).reshape(4, 12)
    y, z = run(program, x=x)
    assert torch.equal(torch.cat([y, z], 1), x)


def test_constants_travel_along() -> None:
    b = Builder(TP)
    c = b.enter("c", "f32[4]", "B", InputKind.CONSTANT)
    b.leave(
        OutputKind.OUTPUT, "y", b.call("n", aten.neg.default, (c,), "f32[4]", "B -> B")
    )
    program = b.program()
    program.constants["c"] = torch.ones(4)
    assert ranks(program)[0].constants is program.constants
