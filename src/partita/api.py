"""``compile`` and ``parallelize``: from a plan to the program of this rank."""

from __future__ import annotations

from typing import Any, cast

import torch

from partita.compiler.capture.inputs import leaf_namer
from partita.compiler.capture.scored_model import LossFunction
from partita.compiler.errors import BadPlan
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import OutputKind
from partita.compiler.local_invariants import (
    Issued,
    collectives_of,
    digest,
    in_step,
)
from partita.compiler.local_invariants import local as check_local
from partita.compiler.plan.decisions import digests
from partita.compiler.plan.inputs import to_capture
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stage_records import Stage
from partita.compiler.plan.stages import read_schedule
from partita.compiler.plan.uses import type_of
from partita.compiler.plan.wires import wires_of
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered, capture_for, lower_stages
from partita.options import Options
from partita.runtime.agree import everyone_checks, everyone_tells, from_first_rank
from partita.runtime.batch import BatchSpec
from partita.runtime.compilation import Compilation
from partita.runtime.groups import Groups, bind_stages, join, start
from partita.runtime.heap import keep_freed_memory
from partita.runtime.materialize import Init, check_init
from partita.runtime.program import ParallelProgram
from partita.runtime.replayed import check_replayable
from partita.runtime.share import StagePrograms
from partita.runtime.way import Way


def compile(
    model: torch.nn.Module,
    plan: Plan,
    init: Init = None,
    device: str | torch.device | None = None,
    *,
    loss: LossFunction | None = None,
    rules: RuleSet = default_rules,
    compilation: str = Compilation.AUTO,
) -> ParallelProgram:
    """Return this rank's program of ``model`` under ``plan``.

    Call it on every rank, under torchrun or ``partita run``.

    Args:
        model: the module the plan was made for; on the meta device when ``init`` gives
            the values, so that no rank ever holds all of it.
        plan: what ``pt.plan`` or ``pt.Plan.load`` returned.
        init: where first values come from: ``None`` (the model's own), a seed, a state
            dict, or a callable ``(name, shape, dtype) -> tensor``.
        device: unless given, a GPU where every local rank has one, else the CPU.
        loss: the function of ``Options(loss=...)``, for a plan loaded from a file.
        rules: the table that the plan was made with.
        compilation: how the step runs: ``eager`` op by op, ``regions`` with what the
            plan fuses compiled, ``whole`` compiled from end to end before this returns,
            ``cuda-graph`` so, too, and then replayed with one launch on one GPU;
            ``auto`` as a whole where a plan of one stage fuses and memory does not
            matter (``Compilation.for_plan``), in regions otherwise.

    Raises:
        BadOptions: for another ``compilation``, or one that the plan has no use for;
            when the ranks begin with unlike values, or ``init`` has no tensors, or
            another rank's shards.
        BadPlan: when the plan is of another model, or that of another rank another.
        BadMesh: when another number of processes runs than the plan has ranks.
    """
    if not isinstance(cast(object, plan), Plan):
        raise BadPlan(
            f"compile: found {plan!r:.80} for a plan; want what pt.plan or "
            "pt.Plan.load returned"
        )
    way_to_run = Compilation.parse(compilation).for_plan(plan)
    captured = capture_for(model, plan, loss=loss, rules=rules)
    join(plan.mesh, device)
    _check_one_plan(plan)
    stages = [(stage.mesh, stage.ranks) for stage in plan.stages]
    groups = bind_stages(plan.mesh, stages, device)
    if all(own.device.type == "cpu" for own in groups.values()) and _has_room(plan):
        keep_freed_memory()
    # Another rank's stages are not looked at here, and may not be what can be.
    lowered = everyone_checks(lambda: lower_stages(captured, plan, groups, rules))
    programs = {
        number: _programs(lowered[number], own, way_to_run)
        for number, own in groups.items()
    }
    if way_to_run is Compilation.CUDA_GRAPH:
        for own in programs.values():
            count = own.local.in_time.count
            check_replayable(plan.mesh, count, own.groups.device)
    for number, stage in enumerate(plan.stages):
        issued = _issued(programs[number]) if number in programs else ()
        _check_in_step(number, stage, issued)
    spec = to_capture(plan.inputs)
    batch = BatchSpec(leaf_namer(model), spec.leaves)
    way = None if len(plan.stages) == 1 else _way(plan)
    check_init(init)
    program = ParallelProgram(
        programs, model, batch, init, captured.outputs.restore, way
    )
    program.check_first_values()
    return program


def _has_room(plan: Plan) -> bool:
    """Whether gaps between blocks that are kept fit beside what the step holds."""
    room = plan.options.memory_bytes
    if room is None:
        room = load_hardware(plan.hardware).device.memory_bytes
    return 2 * plan.predicted.bytes <= room


def _programs(
    lowered: Lowered, groups: Groups, compilation: Compilation
) -> StagePrograms:
    """Return what this rank runs of a stage."""
    here = groups.coordinates
    local = lowered.at(here)
    is_one = len(lowered.plan.stages) == 1
    parts = () if is_one else lowered.parted(local)
    completing = lowered.completing_at(here)
    is_cut = bool(parts) and not compilation.is_whole
    return StagePrograms(
        local,
        groups,
        lowered.bringing_at(here),
        completing,
        parts,
        lowered.closing(parts, completing) if is_cut else None,
        compilation,
    )


def _issued(programs: StagePrograms) -> tuple[Issued, ...]:
    """Check what this rank runs of a stage; return the collectives it will call."""
    parts = programs.parts or (programs.local,)
    every = (*programs.bringing, *parts)
    issued = [call for program in every for call in check_local(program)]
    completing = [check_local(program) for program in programs.completing]
    if programs.closing is not None:
        last = check_local(parts[-1])
        issued += collectives_of(programs.closing, last, completing)
    else:
        issued += [call for calls in completing for call in calls]
    return tuple(issued)


def _way(plan: Plan) -> Way:
    homes = {
        node.role.name: node.stage
        for node in plan.nodes.values()
        if node.role is not None and node.role.kind.is_state
    }
    for name, parameter in plan.parameters.items():
        homes |= dict.fromkeys(parameter.aliases, homes[name])
    loss = next((o for o in plan.outputs if o.kind is OutputKind.LOSS), None)
    if loss is None or loss.value is None:
        return Way(read_schedule(plan), wires_of(plan), homes, None, 0)
    ranks = plan.stages[plan.nodes[loss.value.key].stage].ranks
    type_ = type_of(plan, loss.value)
    return Way(read_schedule(plan), wires_of(plan), homes, type_, ranks[0])


def _check_one_plan(plan: Plan) -> None:
    """Check that all ranks have one plan; what they do is made for that of the others.

    Raises:
        BadPlan: on every rank, when one has another.
    """
    told = everyone_tells(digests(plan))
    for rank, own in enumerate(told):
        unlike = [name for name, digest in own.items() if digest != told[0][name]]
        if unlike:
            raise BadPlan(
                f"rank {rank} has another plan than rank 0, with other "
                f"{', '.join(unlike)}; ranks that plan for themselves may find unlike "
                "plans: call pt.parallelize, which plans once for all of them, or save "
                "a plan and have every rank load it"
            )


def _check_in_step(number: int, stage: Stage, issued: tuple[Issued, ...]) -> None:
    """Check, before anything runs, that no rank would wait for another for ever.

    Ranks tell each other a hash of what they will call; only where those differ, which
    is a bug of a pass, do they send the calls themselves, to name the first.
    """
    told = everyone_tells(digest(issued))
    for axis in stage.mesh.names:
        for group in stage.mesh.groups(axis):
            name = f"stage{number}/{axis}"
            if len({told[stage.ranks[at]].get(name) for at in group}) > 1:
                calls = everyone_tells(issued)
                in_step(stage.mesh, [calls[rank] for rank in stage.ranks])


def parallelize(
    model: torch.nn.Module,
    *args: Any,
    mesh: Mesh | str | None = None,
    options: Options | None = None,
    devices: int | None = None,
    **kwargs: Any,
) -> ParallelProgram:
    """Plan ``model`` for ``mesh`` and compile it for this rank: see ``pt.plan``.

    The first rank plans, the others are told: ranks that disagreed would wait for each
    other for ever.
    """
    options = options or Options()
    start()

    def decide() -> dict[str, Any]:
        from partita.planning import plan as make_plan  # the first rank's alone

        found = make_plan(
            model, *args, mesh=mesh, options=options, devices=devices, **kwargs
        )
        return found.to_dict()

    found = Plan.from_dict(from_first_rank(decide))
    return compile(model, found, loss=options.loss, rules=options.rules)
