"""Collectives as exchanges: the same values, where the machine wins by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.compiler.search.hand_made import machine
from tests.e2e.boxing_programs import BoxingCase, X
from tests.models import zoo
from tests.slow import slow

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.cost.collectives import (
    CollectiveKind,
    axis_seconds,
    carried_out,
    is_exchanged,
    seconds,
    sent_bytes,
    wire_bytes,
)
from partita.compiler.hardware.links import CollectiveCost
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.lowering import lower
from partita.passes.exchange_instead import exchange_instead
from partita.runtime.virtual import run_all

ROWS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
REDUCE, EXCHANGE = CollectiveKind.ALL_REDUCE, CollectiveKind.ALL_TO_ALL
MESH = Mesh(dp=2)
SLOW = CollectiveCost(1e-5, 1e7)


def slow_at(
    kinds: tuple[CollectiveKind, ...],
    device: str = "cpu",
    slow: CollectiveCost = SLOW,
) -> Hardware:
    """Return a machine whose exchanges are ten times as fast as these collectives."""
    made = machine()
    (wire,) = made.links
    costs = {**wire.costs, **dict.fromkeys(kinds, slow)}
    return replace(
        made,
        source=f"{made.source} {kinds} {device} {slow}",
        links=(replace(wire, costs=costs),),
        device=replace(made.device, kind=device),
    )


def test_a_slow_gather_is_an_exchange() -> None:
    hardware, num_bytes = slow_at(ROWS), 1 << 20
    for kind in ROWS:
        own_s = seconds(kind, num_bytes, 2, hardware.legs(MESH, 0))
        found_s = axis_seconds(kind, num_bytes, MESH, 0, hardware)
        assert is_exchanged(kind, num_bytes, MESH, 0, hardware)
        whole_s = 3 * num_bytes / hardware.device.memory_bytes_per_s
        exchange = CollectiveKind.ALL_TO_ALL
        expected = axis_seconds(exchange, num_bytes, MESH, 0, hardware)
        assert found_s == pytest.approx(
            expected + whole_s + hardware.device.launch_s, rel=1e-9
        )
        assert found_s < own_s


def test_what_was_put_in_is_put_in() -> None:
    hardware = slow_at(ROWS)
    gather, scatter = (carried_out(kind, 1 << 20, MESH, 0, hardware) for kind in ROWS)
    exchange = CollectiveKind.ALL_TO_ALL
    assert (gather, scatter) == ((exchange, 1 << 21), (exchange, 1 << 20))
    assert carried_out(REDUCE, 1 << 20, MESH, 0, hardware) == (REDUCE, 1 << 20)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_slow_sum_is_an_exchange_of_all_that_each_has(size: int) -> None:
    mesh, payload, hardware = Mesh(dp=size), 1001 * 4, slow_at((REDUCE,))
    assert carried_out(REDUCE, payload, mesh, 0, hardware) == (EXCHANGE, size * payload)
    wire = wire_bytes(REDUCE, payload, size)
    sent = sent_bytes(REDUCE, wire, mesh, 0, hardware)
    assert sent == (size - 1) * payload
    # What is repeated is read once and written for each, what came the other way round.
    passes_s = 2 * (size + 1) * payload / hardware.device.memory_bytes_per_s
    found_s = axis_seconds(REDUCE, wire, mesh, 0, hardware)
    assert found_s == pytest.approx(
        axis_seconds(EXCHANGE, sent, mesh, 0, hardware)
        + passes_s
        + 2 * hardware.device.launch_s,
        rel=1e-3,  # wire bytes are rounded up
    )
    assert found_s < seconds(REDUCE, wire, size, hardware.legs(mesh, 0))


def test_large_sums_are_the_machine_s_own() -> None:
    late = slow_at((REDUCE,), slow=CollectiveCost(1e-3, 1e9))
    own = [carried_out(REDUCE, 1 << n, Mesh(dp=4), 0, late)[0] for n in range(8, 28)]
    assert own == sorted(own, reverse=True)  # exchanges up to some size, none above it
    assert {*own} == {REDUCE, EXCHANGE}
    assert sent_bytes(REDUCE, 1 << 27, Mesh(dp=4), 0, late) == 1 << 27


def test_gpus_use_their_own() -> None:
    for kind in (*ROWS, REDUCE):
        assert not is_exchanged(
            kind, 1 << 10, MESH, 0, slow_at((*ROWS, REDUCE), "cuda")
        )
        assert not is_exchanged(kind, 1 << 20, MESH, 0, slow_at(ROWS, "cuda"))
        assert not is_exchanged(kind, 1 << 20, MESH, 0, load_hardware("h100-dgx"))


def test_a_scatter_is_no_faster_than_half_of_a_sum() -> None:
    hardware = slow_at((*ROWS, CollectiveKind.ALL_REDUCE))
    for num_bytes in (1 << 10, 1 << 20):
        both_s = sum(axis_seconds(k, num_bytes, MESH, 0, hardware) for k in ROWS)
        sum_s = axis_seconds(
            CollectiveKind.ALL_REDUCE, 2 * num_bytes, MESH, 0, hardware
        )
        assert both_s >= sum_s * (1 - 1e-9)


SENT = [
    (Mesh(dp=2), 0),
    slow(Mesh(dp=2), "25MiB"),
    slow(Mesh(dp=3), 0),
    (Mesh(dp=3), "25MiB"),
    (Mesh(dp=2, tp=2), 0),
    slow(Mesh(dp=2, tp=2), "25MiB"),
]
"""Meshes, and whether what is sent is sent in buckets."""


@pytest.mark.parametrize("name", ["mlp", pytest.param("gpt2", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("mesh", "bucket"), SENT)
def test_the_model_computes_the_same(name: str, mesh: Mesh, bucket: int | str) -> None:
    model, args, kwargs = zoo.ZOO[name]()
    pins = {
        parameter: zoo_pin(value, mesh) for parameter, value in model.named_parameters()
    }
    options = pt.Options(hardware=slow_at(ROWS), pins=pins, bucket=bucket)
    plan = pt.plan(model, *args, mesh=mesh, options=options, **kwargs)
    report = pt.verify(model, *args, plan=plan, **kwargs)
    assert report.ok, str(report)
    kinds = {total.kind for total in plan.collectives}
    assert "all_to_all" in kinds
    assert not kinds & set(map(str, ROWS))
    (lowered,) = lower(capture(model, args, kwargs), plan)
    for local in lowered.of_all():
        called = {
            str(node.target).split(".")[1]
            for node in local.graph_module.graph.nodes
            if str(node.target).startswith("_c10d_functional.")
        }
        assert "all_to_all_single" in called
        assert not called & {"all_gather_into_tensor", "reduce_scatter_tensor"}


@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16])
def test_what_is_scattered_is_reduced_as_before(
    reduction: str, dtype: torch.dtype
) -> None:
    check_reduced((7, 3), reduction, dtype, "S(0)")


@pytest.mark.parametrize("shape", [(7, 3), (5,), ()])
@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.bfloat16])
def test_what_all_have_is_reduced_as_before(
    shape: tuple[int, ...], reduction: str, dtype: torch.dtype
) -> None:
    found = check_reduced(shape, reduction, dtype, "B")
    for other in found:
        assert torch.equal(other, found[0]), "ranks have the same bits"


def check_reduced(
    shape: tuple[int, ...],
    reduction: str,
    dtype: torch.dtype,
    target: str,
) -> list[torch.Tensor]:
    """Reduce by exchanges; check against the machine's own, return what ranks have."""
    type_, mesh, hardware = (
        TensorType(shape, dtype),
        Mesh(tp=4),
        slow_at((*ROWS, REDUCE)),
    )
    pair = Placement.parse(f"P({reduction})"), Placement.parse(target)
    case = BoxingCase.of(type_, pair, mesh, hardware)
    locals_ = [case.lowered(at) for at in mesh.all_coordinates()]
    exchanged = [exchange_instead(local, hardware) for local in locals_]
    feeds = [{X: shard} for shard in case.shards()]
    kept, found = run_all(locals_, feeds), run_all(exchanged, feeds)
    results: list[torch.Tensor] = []
    for (own,), (there,) in zip(kept, found, strict=True):
        torch.testing.assert_close(there, own)
        assert there is not None
        results.append(there)
    calls = [str(n.target) for n in exchanged[0].graph_module.graph.nodes]
    assert any("all_to_all_single" in call for call in calls)
    assert not any("reduce_scatter" in c or "all_reduce" in c for c in calls)
    return results


def test_sixteen_bits_are_added_up_in_more() -> None:
    type_, mesh, hardware = (
        TensorType((1,), torch.bfloat16),
        Mesh(tp=4),
        slow_at((REDUCE,)),
    )
    pair = Placement.parse("P(sum)"), Placement.parse("B")
    case = BoxingCase.of(type_, pair, mesh, hardware)
    parts = [256.0, 1.0, 1.0, 1.0]  # one by one they would be lost
    feeds = [{X: torch.tensor([part], dtype=torch.bfloat16)} for part in parts]
    found = run_all([case.program(at) for at in mesh.all_coordinates()], feeds)
    for (there,) in found:
        assert there is not None
        assert there.item() == torch.tensor(259.0).bfloat16().item() == 260.0


SLOW_SUM = slow_at((*ROWS, REDUCE))


def collectives_of(local: LocalProgram) -> list[str]:
    """Return the names of a rank's collectives and waits, and ``mm`` of products."""
    calls = (str(n.target).split(".") for n in local.graph_module.graph.nodes)
    return [
        call[1]
        for call in calls
        if call[0] == "_c10d_functional" or call[:2] == ["aten", "mm"]
    ]


@pytest.mark.parametrize(("mesh", "bucket"), SENT)
def test_sums_of_gradients_are_exchanges(mesh: Mesh, bucket: int | str) -> None:
    model, args, kwargs = zoo.ZOO["mlp"]()
    pins = zoo.data_parallel_pins((model, args, kwargs), mesh.ndim)
    options = pt.Options(hardware=SLOW_SUM, pins=pins, bucket=bucket)
    plan = pt.plan(model, *args, mesh=mesh, options=options, **kwargs)
    report = pt.verify(model, *args, plan=plan, **kwargs)
    assert report.ok, str(report)
    assert {total.kind for total in plan.collectives} == {"all_to_all"}
    assert bool(plan.buckets) == bool(bucket)
    (lowered,) = lower(capture(model, args, kwargs), plan)
    for local in lowered.of_all():
        graph = local.graph_module.graph
        exchange = torch.ops._c10d_functional.all_to_all_single.default
        begun = graph.find_nodes(op="call_function", target=exchange)
        assert len(begun) == sum(total.count for total in plan.collectives)
        assert "all_reduce" not in collectives_of(local)
        put_in = {node.all_input_nodes[0].target for node in begun}
        ops = torch.ops.aten
        assert (ops.cat.default in put_in) == bool(bucket)


def test_what_nobody_waits_for_is_exchanged_beside_computing() -> None:
    model, args, kwargs = zoo.ZOO["mlp"]()
    pins = zoo.data_parallel_pins((model, args, kwargs), 1)
    options = pt.Options(hardware=SLOW_SUM, pins=pins, bucket=0)
    plan = pt.plan(model, *args, mesh=MESH, options=options, **kwargs)
    (lowered,) = lower(capture(model, args, kwargs), plan)
    found = collectives_of(lowered.at((0,)))
    first, last = found.index("mm"), len(found) - 1 - found[::-1].index("mm")
    assert "all_to_all_single" in found[first:last]
    assert "wait_tensor" not in found[first:last]


def zoo_pin(value: torch.Tensor, mesh: Mesh) -> str:
    """Return the pin of a parameter that is stored in parts and used whole."""
    whole = ", ".join("B" for _ in mesh.names)
    parts = ", ".join(["S(0)", *("B" for _ in mesh.names[1:])])
    return f"({parts}) use=({whole})" if value.ndim else f"({whole})"
