"""The price that the search reports is the price of the program that is emitted."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.compiler.search.hand_made import machine
from tests.e2e.emitted_price import emitted_price
from tests.models.normed import Normed
from tests.models.zoo import ZOO, Built, gpt2
from tests.slow import slow

from partita.compiler.capture.capture import capture
from partita.compiler.cost.boxing import step_seconds
from partita.compiler.cost.collectives import axis_seconds
from partita.compiler.cost.step import step_wire_bytes
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.plan.uses import type_of
from partita.compiler.search.decide import Found
from partita.compiler.search.fold import Fold
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.solver import solve
from partita.lowering import Lowered, lowerings_of
from partita.one_mesh.planner import Planner
from partita.options import Options

# Quick links and slow arithmetic, so that even tiny models are split.
MACHINE = machine(
    flops_per_s=1e9,
    memory_bytes_per_s=2e9,
    launch_s=1e-7,
    alpha_s=3e-7,
    bytes_per_s=1e9,
)
SAME = 1e-9
TP, GRID = Mesh(tp=2), Mesh(dp=2, tp=2)


def copies_s(plan: Plan, hardware: Hardware) -> float:
    """Return what the copies around the collectives of a step take."""
    total = 0.0
    for boxing in plan.boxings:
        type_ = type_of(plan, boxing.ref)
        for step in lowerings_of(plan)[boxing.key]:
            total += step_seconds(type_, step, plan.mesh, hardware)
            if step.collective is not None:
                wire = step_wire_bytes(type_, step, plan.mesh)
                kind, axis = step.collective, step.axis
                total -= axis_seconds(kind, wire, plan.mesh, axis, hardware)
    return total


def check(planner: Planner, found: Found, objective: float) -> Plan:
    """Compare the objective, the plan's prediction and the emitted program."""
    plan = planner.decide(found)
    assert plan.predicted.seconds == pytest.approx(objective, rel=SAME)
    lowered = Lowered.of(planner.captured, plan, planner.options.rules)
    first = (0,) * plan.mesh.ndim
    hardware = planner.posed.candidates.hardware
    emitted = [
        emitted_price(program, planner.options.rules, hardware)
        for program in (lowered.at(first), *lowered.bringing_at(first))
    ]
    total = sum(price.compute_s + price.collectives_s for price in emitted)
    total += copies_s(plan, hardware) + plan.predicted.seconds_by_part["update"]
    count = sum(price.num_collectives for price in emitted)
    assert count == sum(c.count for c in plan.collectives)
    assert total == pytest.approx(objective, rel=SAME)
    return plan


def planner_of(built: Built, mesh: Mesh, hardware: Hardware) -> Planner:
    model, args, kwargs = built
    captured = capture(model, args, kwargs)
    name = type(model).__name__
    return Planner(captured, name, mesh, Options(hardware=hardware))


RESULT = SearchResult("", "", None, 0.0)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("mlp", TP),
        ("mlp", GRID),
        slow("gpt2", TP),
        *(slow(name, GRID) for name in ("gpt2", "llama", "bert", "vit")),
    ],
)
def test_fastest_plan(name: str, mesh: Mesh) -> None:
    planner = planner_of(ZOO[name](), mesh, MACHINE)
    found = solve(planner.posed.problem, 60.0)
    plan = check(planner, Found(found.choices, RESULT), found.seconds)
    assert plan.collectives, "nothing was split: the test shows nothing"


def test_gathers_and_scatters_that_are_exchanges() -> None:
    planner = planner_of(ZOO["mlp"](), TP, load_hardware("cpu-gloo"))
    pins = {f"{name}.weight": "S(0) use=B" for name in ("up", "down")}
    pins |= {"x": "S(0)", "target": "S(0)"}
    planner = replace(planner, options=replace(planner.options, pins=pins))
    found = solve(planner.posed.problem, 60.0)
    plan = check(planner, Found(found.choices, RESULT), found.seconds)
    stated = {step.kind for boxing in plan.boxings for step in boxing.lowering}
    assert {"all_gather", "reduce_scatter"} <= stated
    assert "all_to_all" in {total.kind for total in plan.collectives}


@pytest.mark.parametrize("mesh", [TP, Mesh(tp=3)])
def test_sums_that_are_exchanges(mesh: Mesh) -> None:
    planner = planner_of(ZOO["mlp"](), mesh, load_hardware("cpu-gloo"))
    pins = {"up.weight": "S(0) use=S(0)", "down.weight": "S(1) use=S(1)"}
    pins |= {"x": "B", "target": "B"}
    planner = replace(planner, options=replace(planner.options, pins=pins))
    found = solve(planner.posed.problem, 60.0)
    plan = check(planner, Found(found.choices, RESULT), found.seconds)
    sums = [s for b in plan.boxings for s in b.lowering if s.kind == "all_reduce"]
    assert sums
    (total,) = plan.collectives
    assert total.kind == "all_to_all"
    assert total.bytes == mesh.size * sum(step.payload for step in sums)
    for step in sums:
        assert step.bytes == (mesh.size - 1) * step.payload


def test_sums_that_an_op_needs_inside_and_returns_are_counted_once() -> None:
    model = Normed()
    built = model, (torch.randn(4, 3, 8, 8),), {}
    pins = {"input:x": "S(0)", **{name: "B" for name, _ in model.named_parameters()}}
    planner = planner_of(built, TP, MACHINE)
    planner = replace(planner, options=replace(planner.options, pins=pins))
    found = solve(planner.posed.problem, 60.0)
    plan = check(planner, Found(found.choices, RESULT), found.seconds)
    assert len(plan.expanded) == 2


@pytest.mark.parametrize("layers", [4, slow(8)])
def test_layers_that_are_folded_are_counted_each(layers: int) -> None:
    planner = planner_of(gpt2(layers), TP, MACHINE)
    problem = planner.posed.problem
    fold = Fold.of(problem)
    assert fold.has_classes
    found = solve(problem, 60.0, fold=fold)
    plan = check(planner, Found(found.choices, RESULT), found.seconds)
    assert plan.collectives


@pytest.mark.parametrize("name", ["mlp", slow("gpt2")])
def test_plan_under_a_limit(name: str) -> None:
    planner = planner_of(ZOO[name](), TP, load_hardware("cpu-gloo"))
    posed = planner.posed
    free = solve(posed.problem, 60.0, fold=Fold.of(posed.problem))
    whole = planner.decide(Found(free.choices, RESULT)).predicted.bytes
    search = LimitedSearch(posed, free, "adamw", Clock.of(60.0))
    found = search.run(int(0.7 * whole))
    assert found.fits
    again = found.keeping.again
    plan = check(planner, Found(found.choices, RESULT, again), found.seconds)
    assert plan.collectives
