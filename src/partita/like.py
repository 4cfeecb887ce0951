"""Plan a model like another plan: after an edit, or for another number of ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from partita.collection import collection_paused
from partita.compiler.capture.capture import capture
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.document import LossKind
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.reapplied import Reapplied, compare_reapplied
from partita.compiler.search.carried import carried_pins
from partita.lowering import in_microbatches
from partita.options import Options
from partita.planning import plan
from partita.staged import PIPELINE, stage_mesh


def plan_like(
    model: torch.nn.Module,
    *args: Any,
    like: Plan,
    mesh: Mesh | str | None = None,
    options: Options | None = None,
    **kwargs: Any,
) -> tuple[Plan, Reapplied]:
    """Plan ``model`` with the decisions of another plan where they still fit.

    Args:
        model: the module, edited or not.
        args: example inputs of ONE global batch, as the model is called with.
        like: the plan whose decisions are kept. What its stages hold is cut anew.
        mesh: the ranks; those of ``like`` unless given.
        options: as for ``plan``; those that ``like`` was made with unless given.
        kwargs: example keyword inputs.

    Returns:
        The new plan, and what of the old one is matched, moved, new and gone.

    Raises:
        BadMesh, CaptureFailed, BadOptions, NoSolution: as ``plan`` does.
    """
    mesh = Mesh.parse(mesh) if isinstance(mesh, str) else mesh or like.mesh
    options = options or options_of(like, mesh)
    with collection_paused():
        captured = capture(model, args, kwargs, loss=options.loss, train=options.train)
    count = options.microbatches if isinstance(options.microbatches, int) else 1
    captured = in_microbatches(captured, count, options.rules)
    own = stage_mesh(mesh) if PIPELINE in mesh.names else mesh
    pins = carried_pins(like, captured.program, own, options.pins)
    asked = replace(options, pins=pins)
    found = plan(model, *args, mesh=mesh, options=asked, **kwargs)
    kept = replace(found.options, pins=dict(options.pins))
    found = replace(found, options=kept)
    return found, compare_reapplied(like, found)


def options_of(like: Plan, mesh: Mesh) -> Options:
    """Return the options that ``like`` was made with, as far as they fit ``mesh``.

    Pins are not among them: what they asked for was decided so, or could not be.
    """
    own, rows = like.options, len(like.schedule.rows)
    has_stages = len(like.stages) > 1 and PIPELINE in mesh.names
    return Options(
        loss=like.loss_function if own.loss is LossKind.CALLABLE else None,
        hardware=Hardware.from_dict(dict(like.hardware), "hardware"),
        memory=own.memory_bytes,
        optimizer=own.optimizer,
        train=own.train,
        microbatches=like.microbatches,
        schedule=like.schedule.name if has_stages else "auto",
        stages_per_rank=len(like.stages) // rows if has_stages else 1,
    )
