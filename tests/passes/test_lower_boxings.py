from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.compiler.cost import boxing_strategies as strategies
from tests.passes import lockstep

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.step import Step, StepKind, find_step, payload_bytes_at
from partita.compiler.errors import BadPlacement
from partita.compiler.hardware.profile import load_hardware, profile_names
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.passes.lower_boxings import lowering_key


def check(type: TensorType, steps: tuple[Step, ...], mesh: Mesh) -> None:
    """Shards go in by the first placement and come out right by the last."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-99, 99, type.shape, generator=generator).to(torch.float64)
    shards = lockstep.scatter(x, steps[0].before, mesh, generator)
    coordinates = mesh.all_coordinates()
    graphs = [lockstep.lowered(type, steps, mesh, coords) for coords in coordinates]
    keys = [
        [lowering_key(type.shape, step, mesh, coords) for step in steps]
        for coords in coordinates
    ]
    for key, graph in zip(keys, graphs, strict=True):  # equal keys, equal graphs
        assert str(graph) == str(graphs[keys.index(key)])
    results, calls = lockstep.run(graphs, shards, mesh)
    after = steps[-1].after
    for coords, result, called in zip(coordinates, results, calls, strict=True):
        assert result.shape == shard_shape(type.shape, after, mesh, coords)
        assert result.is_contiguous()
        counted = [(call.op.split("_tensor")[0], call.num_bytes) for call in called]
        assert [num_bytes for _, num_bytes in counted if num_bytes] == [
            num_bytes
            for step in steps
            if (num_bytes := payload_bytes_at(type, step, mesh, coords))
        ]
    gathered = lockstep.gather(results, type.shape, after, mesh)
    assert torch.equal(gathered, x)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), mesh=strategies.meshes(), type=strategies.types())
def test_any_boxing_keeps_the_logical_value(
    data: st.DataObject, mesh: Mesh, type: TensorType
) -> None:
    source = data.draw(strategies.placements(type.shape, mesh.ndim))
    target = data.draw(strategies.placements(type.shape, mesh.ndim))
    assume(source != target)
    hardware = load_hardware(data.draw(st.sampled_from(profile_names())))
    check(type, cheapest_steps(type, source, target, mesh, hardware).steps, mesh)


@settings(max_examples=300, deadline=None)
@given(data=st.data(), mesh=strategies.meshes(), type=strategies.types())
def test_any_step_keeps_the_logical_value(
    data: st.DataObject, mesh: Mesh, type: TensorType
) -> None:
    before = data.draw(strategies.placements(type.shape, mesh.ndim))
    axis = data.draw(st.integers(0, mesh.ndim - 1))
    try:
        after = before.with_axis(axis, data.draw(strategies.shardings(type.shape)))
    except BadPlacement:
        assume(False)
        return
    assume(before != after)
    step = find_step(type.shape, before, after, axis, mesh)
    if step is not None:
        check(type, (step,), mesh)


def step_of(type: str, before: str, after: str, axis: int, mesh: Mesh) -> Step:
    shape = TensorType.parse(type).shape
    source, target = Placement.parse(before), Placement.parse(after)
    step = find_step(shape, source, target, axis, mesh)
    assert step is not None
    return step


@pytest.mark.parametrize(
    ("type", "before", "after", "kind"),
    [
        ("f64[8, 4]", "S(0)", "B", StepKind.ALL_GATHER),
        ("f64[8, 4]", "S(1)", "B", StepKind.ALL_GATHER),
        ("f64[6, 3]", "S(0)", "B", StepKind.ALL_GATHER),
        ("f64[3, 9]", "S(1; 4|5)", "B", StepKind.ALL_GATHER),
        ("f64[8, 4]", "P(sum)", "B", StepKind.ALL_REDUCE),
        ("f64[8, 4]", "P(max)", "B", StepKind.ALL_REDUCE),
        ("f64[8, 4]", "P(sum)", "S(0)", StepKind.REDUCE_SCATTER),
        ("f64[5, 6]", "P(min)", "S(1)", StepKind.REDUCE_SCATTER),
        ("f64[8, 8]", "S(0)", "S(1)", StepKind.ALL_TO_ALL),
        ("f64[6, 9]", "S(1)", "S(0)", StepKind.ALL_TO_ALL),
        ("f64[12, 2]", "S(0)", "S(0; 4|4|4)", StepKind.ALL_TO_ALL),
        ("f64[2, 13]", "S(1; 5|4|4)", "S(1)", StepKind.ALL_TO_ALL),
        ("f64[8, 4]", "B", "S(0)", StepKind.SLICE),
        ("f64[6, 13]", "B", "S(1; 5|4|4)", StepKind.SLICE),
        ("f64[8, 4]", "B", "P(sum)", StepKind.KEEP_FIRST),
        ("f64[8, 4]", "B", "P(max)", StepKind.RELABEL),
        ("f64[8, 4]", "S(0)", "P(sum)", StepKind.EMBED),
        ("f64[6, 13]", "S(1; 5|4|4)", "P(sum)", StepKind.EMBED),
        ("f64[8, 4]", "S(0)", "P(max)", StepKind.EMBED),
        ("f64[6, 13]", "S(1; 5|4|4)", "P(min)", StepKind.EMBED),
    ],
)
def test_step_on_one_axis(type: str, before: str, after: str, kind: StepKind) -> None:
    mesh = Mesh(tp=4)
    step = step_of(type, before, after, 0, mesh)
    assert step.kind is kind
    check(TensorType.parse(type), (step,), mesh)


EVEN = [
    ("S(0)", "B"),
    ("S(1)", "B"),
    ("S(1; 8|8|8)", "B"),
    ("P(sum)", "S(1; 16|8)"),
    ("S(0)", "S(1)"),
    ("B", "S(0)"),
    ("B", "S(1; 8|8|8)"),
    ("B", "P(sum)"),
    ("S(1; 16|8)", "P(sum)"),
]


@pytest.mark.parametrize(("before", "after"), EVEN)
def test_ranks_with_even_shards_share_one_program(before: str, after: str) -> None:
    mesh, type = Mesh(tp=4), TensorType.parse("f64[8, 24]")
    step = step_of(str(type), before, after, 0, mesh)
    programs = {str(lockstep.lowered(type, (step,), mesh, (i,))) for i in range(4)}
    assert len(programs) == 1
    assert len({lowering_key(type.shape, step, mesh, (i,)) for i in range(4)}) == 1


def test_ranks_that_exchange_halves_alike_share_one_program() -> None:
    # Each keeps half of its shard and swaps the other; where it lies differs not.
    mesh, type = Mesh(tp=2), TensorType.parse("f64[24, 4]")
    step = step_of(str(type), "S(0; 12|12)", "S(0)", 0, mesh)
    programs = {str(lockstep.lowered(type, (step,), mesh, (i,))) for i in range(2)}
    assert len(programs) == 1
    assert len({lowering_key(type.shape, step, mesh, (i,)) for i in range(2)}) == 1


@pytest.mark.parametrize(
    ("mesh", "type", "before", "after", "axis"),
    [
        (Mesh(a=2, b=2), "f64[4, 1, 1]", "(S(2), S(2))", "(S(2), S(1))", 1),
        (Mesh(a=3, b=3), "f64[4, 4]", "(S(0), S(0))", "(S(0), S(1))", 1),
        (Mesh(a=3, b=3), "f64[4]", "(S(0), S(0))", "(S(0), S(0; 1|1|1|1))", 1),
    ],
)
def test_ranks_without_messages_tell_their_empty_shards_and_groups_apart(
    mesh: Mesh, type: str, before: str, after: str, axis: int
) -> None:
    step = step_of(type, before, after, axis, mesh)
    check(TensorType.parse(type), (step,), mesh)


def ops_of(type: str, before: str, after: str, *, enters: bool = False) -> list[str]:
    mesh = Mesh(tp=2)
    step = step_of(type, before, after, 0, mesh)
    whole = TensorType.parse(type)
    graph = lockstep.lowered(whole, (step,), mesh, (0,), enters=enters)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    return [
        str(node.target).split(".")[-2] for node in calls if "." in str(node.target)
    ]


@pytest.mark.parametrize(
    ("before", "after", "ops"),
    [
        ("P(sum)", "B", ["all_reduce", "wait_tensor"]),
        ("S(0)", "B", ["contiguous", "all_gather_into_tensor", "wait_tensor"]),
        ("P(sum)", "S(0)", ["contiguous", "reduce_scatter_tensor", "wait_tensor"]),
        ("B", "P(max)", []),
    ],
)
def test_step_on_the_outermost_dim_copies_nothing(
    before: str, after: str, ops: list[str]
) -> None:
    assert ops_of("f64[8, 4]", before, after) == ops


def test_rows_are_copied_unless_all_of_them_are_there_all_the_time() -> None:
    assert ops_of("f64[8, 4]", "B", "S(0)") == ["slice", "clone"]
    entering = ops_of("f64[8, 4]", "B", "S(0)", enters=True)
    assert entering == ["slice", "contiguous"], "which copies nothing that is in order"


def test_a_slice_of_a_slice_is_a_copy_whatever_the_first_is() -> None:
    mesh, type_ = Mesh(dp=2, tp=2), TensorType.parse("f64[8, 4]")
    first = step_of(str(type_), "(B, B)", "(S(0), B)", 0, mesh)
    second = step_of(str(type_), "(S(0), B)", "(S(0), S(0))", 1, mesh)
    graph = lockstep.lowered(type_, (first, second), mesh, (0, 0), enters=True)
    ops = [str(node.target) for node in graph.nodes if node.op == "call_function"]
    copies = [op for op in ops if "clone" in op or "contiguous" in op]
    assert copies == ["aten.contiguous.default", "aten.clone.default"]


def test_collectives_name_the_group_of_their_stage_and_axis() -> None:
    mesh, type = Mesh(dp=2, tp=2), TensorType.parse("f64[8, 4]")
    step = step_of(str(type), "(B, P(sum))", "(B, B)", 1, mesh)
    text = str(lockstep.lowered(type, (step,), mesh, (0, 0)))
    assert "all_reduce.default](args = (%x, sum, stage0/tp)" in text


def test_axis_of_one_rank_has_no_collective() -> None:
    mesh, type = Mesh(dp=1, tp=2), TensorType.parse("f64[8, 4]")
    step = step_of(str(type), "(P(sum), B)", "(B, B)", 0, mesh)
    assert step.kind is StepKind.RELABEL
    text = str(lockstep.lowered(type, (step,), mesh, (0, 0)))
    assert "call_function" not in text


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_keep_first_and_embed_keep_infinities_out_of_the_other_ranks(
    dtype: torch.dtype,
) -> None:
    mesh = Mesh(tp=2)
    type = TensorType((4,), dtype)
    x = torch.tensor([float("inf"), float("nan"), 1.0, -0.0], dtype=dtype)
    keep = step_of(str(type), "B", "P(sum)", 0, mesh)
    graphs = [lockstep.lowered(type, (keep,), mesh, (i,)) for i in range(2)]
    (first, second), _ = lockstep.run(graphs, [x, x], mesh)
    torch.testing.assert_close(first, x, equal_nan=True)
    assert torch.equal(second, torch.zeros(4, dtype=dtype))
    embed = step_of(str(type), "S(0)", "P(sum)", 0, mesh)
    graphs = [lockstep.lowered(type, (embed,), mesh, (i,)) for i in range(2)]
    (first, second), _ = lockstep.run(graphs, [x[:2], x[2:]], mesh)
    torch.testing.assert_close(first, torch.cat([x[:2], x[2:] * 0]), equal_nan=True)
    assert torch.equal(second[2:], x[2:])
    assert torch.equal(second[:2], torch.zeros(2, dtype=dtype))
