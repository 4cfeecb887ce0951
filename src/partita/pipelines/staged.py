"""The plan of a pipeline, put together from those of its stages.

The schedule and what stages hand each other are added; a simulation of both is what the
plan predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partita.compiler.cost.transfer import hop_seconds
from partita.compiler.errors import BadMesh, NoSolution
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.document import ModelId, Predicted
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stage_records import Stage
from partita.compiler.plan.stages import (
    find_transfers,
    join_stages,
    read_schedule,
    write_schedule,
)
from partita.compiler.plan.units import format_bytes
from partita.compiler.plan.wires import busiest_bytes, wires_of
from partita.compiler.schedules.schedule import Schedule
from partita.compiler.schedules.transfers import with_transfers
from partita.compiler.search.arrangement import (
    PIPELINE,
    SINGLE,
    Arrangement,
    whole_mesh,
)
from partita.compiler.search.stage_cost import StageHeld, most_together
from partita.compiler.simulate.plan import seconds_by_part, simulate_step
from partita.one_mesh.planner import Planner
from partita.pipelines.stage_plans import Planned, Room, StagePlans


def stage_mesh(mesh: Mesh) -> Mesh:
    """Return the mesh of one stage's ranks: all axes but the one that carries stages.

    Raises:
        BadMesh: when that is not the first.
    """
    if mesh.names[0] != PIPELINE:
        raise BadMesh(
            f"mesh {mesh}: axis {PIPELINE!r} carries pipeline stages, whose ranks are "
            f"neighbours; want it first, like {PIPELINE}=2,dp=2"
        )
    rest = dict(mesh.axes[1:])
    return Mesh(**rest) if rest else SINGLE


def arranged(plans: StagePlans, arrangement: Arrangement) -> Plan:
    """Return the plan of an arrangement: of its stages, each planned by itself.

    Raises:
        NoSolution: when the stages do not keep to the memory limit.
    """
    schedule, limit = arrangement.form.schedule, plans.planner.limit
    rooms = [
        None if allowed is None else Room(allowed, live)
        for allowed, live in zip(arrangement.allowed, schedule.most_live, strict=True)
    ]
    parts = plans.plan(arrangement.ends, arrangement.meshes, rooms)
    plan = joined(plans.planner, parts, arrangement.form.ranks, schedule)
    if limit is not None and plan.predicted.bytes > limit:
        raise NoSolution(
            f"memory: the limit is {format_bytes(limit)} on a rank, and the stages "
            f"of one need {format_bytes(plan.predicted.bytes)} together",
            plan.predicted.bytes,
        )
    return plan


def joined(
    planner: Planner,
    parts: Sequence[Planned],
    ranks: Sequence[tuple[int, ...]],
    schedule: Schedule,
) -> Plan:
    """Return the plan of all stages.

    Args:
        planner: of the whole program.
        parts: the plan of each stage, with its figures.
        ranks: of each stage.
        schedule: of their compute.
    """
    plans = [part.plan for part in parts]
    meshes = [plan.mesh for plan in plans]
    stages = [Stage(mesh, own, ()) for mesh, own in zip(meshes, ranks, strict=True)]
    options = planner.options
    pins = {name: str(pin) for name, pin in options.pins.items()}
    first = plans[0].options
    plan = replace(
        join_stages(plans, stages),
        mesh=whole_mesh(meshes, schedule),
        model=ModelId(planner.class_name, planner.captured.fingerprint),
        options=replace(first, memory_bytes=planner.limit, pins=pins),
        schedule=write_schedule(with_transfers(schedule)),
        loss_function=options.loss,
    )
    return predicted(with_priced_transfers(plan), [part.cost.held for part in parts])


def with_priced_transfers(plan: Plan) -> Plan:
    """Return ``plan`` with what its stages hand each other, and what that takes."""
    plan = replace(plan, transfers=find_transfers(plan))
    hardware = load_hardware(plan.hardware)
    priced = tuple(
        replace(
            wire.transfer,
            bytes=busiest_bytes(wire),
            seconds=hop_seconds(
                wire.type.shape, wire.type.dtype, wire.source, wire.target, hardware
            ),
        )
        for wire in wires_of(plan)
    )
    return replace(plan, transfers=priced)


def predicted(plan: Plan, held: Sequence[StageHeld]) -> Plan:
    """Return ``plan`` with what its step is predicted to take, given its stages'."""
    schedule = read_schedule(plan)
    step = simulate_step(plan)
    rows: list[list[tuple[StageHeld, int]]] = [[] for _ in schedule.rows]
    for number, own in enumerate(zip(held, schedule.most_live, strict=True)):
        rows[schedule.rank_of[number]].append(own)
    parts = max(map(most_together, rows), key=lambda parts: sum(parts.values()))
    seconds = seconds_by_part(plan, step)
    return replace(
        plan,
        predicted=Predicted(step.seconds, sum(parts.values()), dict(seconds), parts),
    )
