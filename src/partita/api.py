"""``compile`` and ``parallelize``: from a plan to the program of this rank."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from partita.compiler.capture.inputs import name_leaves
from partita.compiler.capture.scored_model import LossFunction
from partita.compiler.ir.mesh import Mesh
from partita.compiler.local_invariants import Issued, digest, in_step
from partita.compiler.local_invariants import local as check_local
from partita.compiler.plan.inputs import to_capture
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered, capture_for
from partita.options import Options
from partita.planning import plan as make_plan
from partita.runtime.agree import everyone_tells, from_first_rank
from partita.runtime.batch import BatchSpec
from partita.runtime.groups import bind, start
from partita.runtime.materialize import Init
from partita.runtime.program import ParallelProgram


def compile(
    model: torch.nn.Module,
    plan: Plan,
    init: Init = None,
    device: str | torch.device | None = None,
    *,
    loss: LossFunction | None = None,
    rules: RuleSet = default_rules,
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

    Raises:
        BadPlan: when the plan is of another model.
        BadMesh: when another number of processes runs than the plan has ranks.
    """
    captured = capture_for(model, plan, loss=loss, rules=rules)
    groups = bind(plan.mesh, device)
    lowered = Lowered.of(captured, plan, rules)
    local = lowered.at(groups.coordinates)
    bringing = lowered.bringing_at(groups.coordinates)
    completing = lowered.completing_at(groups.coordinates)
    programs = (*bringing, local, *completing)
    issued = tuple(call for program in programs for call in check_local(program))
    _check_in_step(plan.mesh, issued)
    spec = to_capture(plan.inputs)
    batch = BatchSpec(partial(name_leaves, model), spec.leaves)
    restore = captured.outputs.restore
    return ParallelProgram(
        local, model, groups, batch, init, restore, bringing, completing
    )


def _check_in_step(mesh: Mesh, issued: tuple[Issued, ...]) -> None:
    """Check, before anything runs, that no rank would wait for another for ever.

    Ranks tell each other a hash of what they will call; only where those differ, which
    is a bug of a pass, do they send the calls themselves, to name the first.
    """
    told = everyone_tells(digest(issued))
    for axis in mesh.names:
        for ranks in mesh.groups(axis):
            if len({told[rank].get(f"stage0/{axis}") for rank in ranks}) > 1:
                in_step(mesh, everyone_tells(issued))


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
        found = make_plan(
            model, *args, mesh=mesh, options=options, devices=devices, **kwargs
        )
        return found.to_dict()

    found = Plan.from_dict(from_first_rank(decide))
    return compile(model, found, loss=options.loss, rules=options.rules)
