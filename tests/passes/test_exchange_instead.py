"""Gathers and scatters as exchanges: the same values, where the machine wins by it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.compiler.search.hand_made import machine
from tests.e2e.boxing_programs import BoxingCase, X
from tests.models import zoo

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.collectives import (
    CollectiveKind,
    axis_seconds,
    carried_out,
    is_exchanged,
    seconds,
)
from partita.compiler.hardware.links import CollectiveCost
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import NodeInfo, Phase, set_info
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.lowering import lower
from partita.passes.exchange_instead import exchange_instead
from partita.runtime.virtual import run_all

ROWS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER)
MESH = Mesh(dp=2)


def slow_at(kinds: tuple[CollectiveKind, ...], device: str = "cpu") -> Hardware:
    """Return a machine whose exchanges are ten times as fast as these collectives."""
    made = machine()
    (wire,) = made.links
    slow = CollectiveCost(1e-5, 1e7)
    costs = {**wire.costs, **dict.fromkeys(kinds, slow)}
    return replace(
        made,
        source=f"{made.source} {kinds} {device}",
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
    summed = carried_out(CollectiveKind.ALL_REDUCE, 1 << 20, MESH, 0, hardware)
    assert summed == (CollectiveKind.ALL_REDUCE, 1 << 20)


def test_gpus_use_their_own() -> None:
    for kind in ROWS:
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


@pytest.mark.parametrize("name", ["mlp", pytest.param("gpt2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("mesh", [Mesh(dp=2), Mesh(dp=3), Mesh(dp=2, tp=2)])
@pytest.mark.parametrize("bucket", [0, "25MiB"])
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
    type_, mesh = TensorType((7, 3), dtype), Mesh(tp=4)
    pair = Placement.parse(f"P({reduction})"), Placement.parse("S(0)")
    steps = cheapest_steps(type_, *pair, mesh, slow_at(ROWS))
    case = BoxingCase(type_, *pair, mesh, steps)
    locals_ = [with_infos(case.program(at)) for at in mesh.all_coordinates()]
    exchanged = [exchange_instead(local, slow_at(ROWS)) for local in locals_]
    feeds = [{X: shard} for shard in case.shards()]
    kept, found = run_all(locals_, feeds), run_all(exchanged, feeds)
    for (own,), (there,) in zip(kept, found, strict=True):
        torch.testing.assert_close(there, own)
    calls = [str(n.target) for n in exchanged[0].graph_module.graph.nodes]
    assert any("all_to_all_single" in call for call in calls)


def with_infos(local: LocalProgram) -> LocalProgram:
    """Return the program with what passes know of the calls of a boxing."""
    type_ = local.input_types[0]
    assert type_ is not None
    for node in local.graph_module.graph.nodes:
        types: tuple[TensorType, ...] = ()
        if "reduce_scatter" in str(node.target) or "wait" in str(node.target):
            types = (TensorType((2, 3), type_.dtype),)
        if node.op == "call_function":
            key = f"x -> (S(0),)/{node.name}"
            set_info(node, NodeInfo(key, Phase.FORWARD, types))
    return local


def zoo_pin(value: torch.Tensor, mesh: Mesh) -> str:
    """Return the pin of a parameter that is stored in parts and used whole."""
    whole = ", ".join("B" for _ in mesh.names)
    parts = ", ".join(["S(0)", *("B" for _ in mesh.names[1:])])
    return f"({parts}) use=({whole})" if value.ndim else f"({whole})"
