from __future__ import annotations

from itertools import pairwise, product
from math import inf

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.cost import boxing_strategies as strategies

from partita.compiler.cost.boxing import Steps, cheapest_steps, step_seconds
from partita.compiler.cost.step import Step, StepKind, find_step, payload_bytes
from partita.compiler.errors import BadPlacement
from partita.compiler.hardware.profile import (
    CollectiveCost,
    CollectiveKind,
    Device,
    Hardware,
    Link,
    load_hardware,
    profile_names,
)
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Placement, Sharding, Split
from partita.compiler.ir.tensor_type import TensorType

# Figures that are easy to follow: every collective has its own.
GATHER_S, REDUCE_S, SCATTER_S, EXCHANGE_S = 4e-3, 2e-3, 3e-3, 1e-3
GATHER, REDUCE, SCATTER, EXCHANGE = 1e6, 2e6, 3e6, 4e6
LAUNCH_S, MEMORY = 1e-6, 1e9

HARDWARE = Hardware(
    name="by-hand",
    source="made up",
    device=Device("cuda", {"f32": 1e9}, MEMORY, 1 << 30, LAUNCH_S),
    links=(
        Link(
            "wire",
            None,
            {
                CollectiveKind.ALL_GATHER: CollectiveCost(GATHER_S, GATHER),
                CollectiveKind.ALL_REDUCE: CollectiveCost(REDUCE_S, REDUCE),
                CollectiveKind.REDUCE_SCATTER: CollectiveCost(SCATTER_S, SCATTER),
                CollectiveKind.ALL_TO_ALL: CollectiveCost(EXCHANGE_S, EXCHANGE),
            },
        ),
    ),
)

TP4 = Mesh(tp=4)
GRID = Mesh(dp=2, tp=2)


def boxing(
    type: str, source: str, target: str, mesh: Mesh, hardware: Hardware = HARDWARE
) -> Steps:
    return cheapest_steps(
        TensorType.parse(type),
        Placement.parse(source),
        Placement.parse(target),
        mesh,
        hardware,
    )


def kinds(steps: Steps) -> list[str]:
    return [f"{step.kind}:{step.axis}" for step in steps.steps]


@pytest.mark.parametrize(
    ("type", "source", "target", "mesh", "seconds", "num_bytes"),
    [
        # all-gather of a shard of 2 x 4: 3 hops
        ("f32[8, 4]", "S(0)", "B", TP4, 3 * GATHER_S + 3 * 32 / GATHER, 3 * 32),
        # the same on dim 1: the 128 bytes are read and written once more
        (
            "f32[8, 4]",
            "S(1)",
            "B",
            TP4,
            3 * GATHER_S + 3 * 32 / GATHER + LAUNCH_S + 2 * 128 / MEMORY,
            3 * 32,
        ),
        # 6 rows over 4 ranks are 2, 2, 2, 0: shards padded to 2 rows
        ("f32[6, 4]", "S(0)", "B", TP4, 3 * GATHER_S + 3 * 32 / GATHER, 3 * 32),
        # all-reduce of 128 bytes: 6 hops of a quarter
        ("f32[8, 4]", "P(sum)", "B", TP4, 6 * REDUCE_S + 192 / REDUCE, 192),
        ("f32[8, 4]", "P(max)", "B", TP4, 6 * REDUCE_S + 192 / REDUCE, 192),
        # a number: 2 (p - 1) / p of 8 bytes
        ("f64[]", "P(sum)", "B", TP4, 6 * REDUCE_S + 12 / REDUCE, 12),
        # reduce-scatter: 3 hops of a quarter
        ("f32[8, 4]", "P(sum)", "S(0)", TP4, 3 * SCATTER_S + 96 / SCATTER, 96),
        # uneven: 5 rows go in as 4 chunks of 2, 128 bytes
        ("f32[5, 4]", "P(sum)", "S(0)", TP4, 3 * SCATTER_S + 96 / SCATTER, 96),
        # all-to-all: 3 quarters of a shard of 32 bytes; packed, but not unpacked
        (
            "f32[8, 4]",
            "S(0)",
            "S(1)",
            TP4,
            3 * EXCHANGE_S + 24 / EXCHANGE + LAUNCH_S + 2 * 32 / MEMORY,
            24,
        ),
        # other segments of one dim: of the second rank's 4 rows none stays
        (
            "f32[16, 1]",
            "S(0)",
            "S(0; 8|8)",
            TP4,
            3 * EXCHANGE_S + 16 / EXCHANGE + 2 * LAUNCH_S + 4 * 16 / MEMORY,
            16,
        ),
        # uneven shards of 2, 1 rows and 2, 1 columns: the second has 2 from the first
        (
            "f32[3, 3]",
            "S(0)",
            "S(1)",
            Mesh(tp=2),
            EXCHANGE_S + 8 / EXCHANGE + 2 * LAUNCH_S + 4 * 24 / MEMORY,
            8,
        ),
        # without communication: bytes read and written
        ("f32[8, 4]", "B", "S(0)", TP4, LAUNCH_S + 2 * 32 / MEMORY, 0),
        ("f32[3, 5]", "B", "P(sum)", TP4, 3 * LAUNCH_S + 2 * 60 / MEMORY, 0),
        ("f32[8, 4]", "S(0)", "P(sum)", TP4, LAUNCH_S + (32 + 128) / MEMORY, 0),
        ("f32[8, 4]", "S(0)", "P(max)", TP4, LAUNCH_S + (32 + 128) / MEMORY, 0),
        ("f32[8, 4]", "B", "P(max)", TP4, 0.0, 0),
        ("f32[8, 4]", "S(0)", "S(0)", TP4, 0.0, 0),
        # two axes: the reduction moves what one rank holds, half the rows
        (
            "f32[8, 4]",
            "(S(0), P(sum))",
            "(S(0), B)",
            GRID,
            2 * REDUCE_S + 64 / REDUCE,
            64,
        ),
        ("f32[8, 4]", "(S(0), B)", "(S(0), S(1))", GRID, LAUNCH_S + 2 * 32 / MEMORY, 0),
        # P(sum) -> P(max) goes over S, each element with one rank
        (
            "f32[8, 4]",
            "P(sum)",
            "P(max)",
            TP4,
            3 * SCATTER_S + 96 / SCATTER + LAUNCH_S + (32 + 128) / MEMORY,
            96,
        ),
        # an axis of one rank
        ("f32[8, 4]", "(P(sum), B)", "(S(0), B)", Mesh(dp=1, tp=2), 0.0, 0),
    ],
)
def test_price_is_the_formula(
    type: str, source: str, target: str, mesh: Mesh, seconds: float, num_bytes: int
) -> None:
    found = boxing(type, source, target, mesh)
    assert found.seconds == pytest.approx(seconds, rel=1e-12)
    assert found.bytes == num_bytes


@pytest.mark.parametrize("name", profile_names())
def test_splitting_a_copy_sends_nothing(name: str) -> None:
    hardware = load_hardware(name)
    steps = boxing("f32[64, 32]", "(S(0), B)", "(S(0), S(1))", GRID, hardware)
    assert kinds(steps) == ["slice:1"]
    assert steps.bytes == 0


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ("(S(0), S(0))", "(B, B)", ["all_gather:1", "all_gather:0"]),
        ("(B, B)", "(S(0), S(0))", ["slice:0", "slice:1"]),
        # the inner chunks lie inside the outer ones, so the inner split moves away
        ("(S(0), S(0))", "(B, S(0))", ["all_to_all:1", "all_gather:0", "all_to_all:1"]),
        # a sum of maxima: the maximum comes first, and of it each adds up a part
        (
            "(P(sum), P(max))",
            "(B, B)",
            ["reduce_scatter:1", "all_reduce:0", "all_gather:1"],
        ),
    ],
)
def test_inner_axes_are_undone_first(
    source: str, target: str, expected: list[str]
) -> None:
    steps = boxing("f32[4096, 4096]", source, target, GRID, load_hardware("cpu-gloo"))
    assert kinds(steps) == expected


def test_segments_that_cut_nothing_are_a_relabelling() -> None:
    steps = boxing("f32[8]", "(S(0), S(0))", "(S(0), S(0; 4|4))", GRID)
    assert kinds(steps) == ["relabel:1"]
    assert steps.seconds == 0.0


def test_the_largest_shard_need_not_be_the_first() -> None:
    # The halves of 8 are cut at 5: the first is chunked as 4, the second as 1 and 3.
    before = Placement.parse("(S(0), S(0; 5|3))")
    type = TensorType.parse("f32[8]")
    step = find_step(type.shape, before, Placement.parse("(S(0), B)"), 1, GRID)
    assert step is not None
    assert payload_bytes(type, step, GRID) == 3 * 4


def test_slow_link_is_left_to_little_data() -> None:
    # Reducing over both axes of two nodes: scatter inside, reduce across, gather.
    mesh = Mesh(dp=2, tp=8)
    steps = boxing(
        "f32[4096, 4096]", "(P, P)", "(B, B)", mesh, load_hardware("h100-dgx")
    )
    assert kinds(steps) == ["reduce_scatter:1", "all_reduce:0", "all_gather:1"]


def test_illegal_placement_is_refused() -> None:
    with pytest.raises(BadPlacement, match="names dim 2"):
        boxing("f32[8, 4]", "S(2)", "B", TP4)
    with pytest.raises(BadPlacement, match="2 entries"):
        boxing("f32[8, 4]", "(B, B)", "B", TP4)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), mesh=strategies.meshes(), type=strategies.types())
def test_every_boxing_has_a_path(
    data: st.DataObject, mesh: Mesh, type: TensorType
) -> None:
    source = data.draw(strategies.placements(type.shape, mesh.ndim))
    target = data.draw(strategies.placements(type.shape, mesh.ndim))
    steps = cheapest_steps(type, source, target, mesh, HARDWARE)
    stations = [source, *(step.after for step in steps.steps)]
    assert stations[-1] == target
    for step, (before, after) in zip(steps.steps, pairwise(stations), strict=True):
        assert (step.before, step.after) == (before, after)
        assert step == find_step(type.shape, before, after, step.axis, mesh)
        assert after == before.with_axis(step.axis, after.shardings[step.axis])
    seconds = sum(step_seconds(type, step, mesh, HARDWARE) for step in steps.steps)
    assert steps.seconds == pytest.approx(seconds)


def reference_seconds(
    type: TensorType, source: Placement, mesh: Mesh
) -> dict[Placement, float]:
    """Return the cheapest seconds to each placement, by Bellman-Ford over all steps."""
    axes: list[list[Sharding]] = []
    for axis in range(mesh.ndim):
        options: list[Sharding] = [Broadcast(), source.shardings[axis]]
        axes.append(options + [Split(dim) for dim in range(type.ndim)])
    nodes = [Placement(parts) for parts in set(product(*axes))]
    graph = nx.DiGraph()
    for before, after in product(nodes, nodes):
        changed = [
            axis
            for axis in range(mesh.ndim)
            if before.shardings[axis] != after.shardings[axis]
        ]
        if len(changed) == 1:
            step = find_step(type.shape, before, after, changed[0], mesh)
            if step is not None:
                seconds = step_seconds(type, step, mesh, HARDWARE)
                graph.add_edge(before, after, weight=seconds)
    return nx.single_source_bellman_ford_path_length(graph, source)


@pytest.mark.parametrize("type", ["f32[8, 4]", "f32[256, 512, 4]", "f32[8]"])
@pytest.mark.parametrize("source", ["(P, S(0))", "(S(0), S(0))", "(B, P)", "(P, P)"])
def test_no_sequence_of_steps_is_cheaper(type: str, source: str) -> None:
    start = Placement.parse(source)
    found = reference_seconds(TensorType.parse(type), start, GRID)
    assert len(found) > 3
    for target, seconds in found.items():
        assert boxing(type, source, str(target), GRID).seconds == pytest.approx(seconds)


def test_free_links_leave_only_local_copies() -> None:
    free = load_hardware("cpu-gloo-free")
    assert all(cost.bytes_per_s == inf for cost in free.links[0].costs.values())
    assert boxing("f32[64, 32]", "P(sum)", "B", GRID_1, free).seconds == 0.0
    assert boxing("f32[64, 32]", "S(0)", "B", GRID_1, free).seconds == 0.0


GRID_1 = Mesh(tp=2)


def test_a_step_prints_its_ends_and_its_kind() -> None:
    step = Step(
        StepKind.ALL_REDUCE, 0, Placement.parse("P(sum)"), Placement.broadcast(1)
    )
    assert str(step) == "(P(sum),) -> (B,) by all_reduce"
