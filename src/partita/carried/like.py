"""Plan a model like another plan: after an edit, or for another number of ranks.

Placements are carried over as pins. What the old plan makes again for the backward, and
which ops it fuses, is asked for once the placements stand: only then is it known which
ops there are. So are its buckets, last. The stages of a pipeline choose their fused
groups anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from partita.carried.carried_buckets import with_buckets_like
from partita.carried.carried_fusion import with_fusion_like
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.collection import collection_paused
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Phase
from partita.compiler.plan.asked import find_asked
from partita.compiler.plan.counterparts import called_as
from partita.compiler.plan.document import Document, LossKind
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.reapplied import Reapplied, compare_reapplied
from partita.compiler.plan.units import parse_bytes
from partita.compiler.search.carried import carried_pins
from partita.microbatched import in_microbatches
from partita.one_mesh.rules_for import rules_for
from partita.options import Options
from partita.passes.expand_ops import ExpandOps
from partita.passes.recompute import Recompute
from partita.pipelines.staged import PIPELINE, stage_mesh
from partita.planning import plan

KEPT = "what another plan decided kept"
"""Says in a plan that it is compared with those alone that decide so too."""


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
        The new plan, and what of the old one is matched, moved, new and gone:
        parameters, calls, those made again for the backward, fused groups, buckets.

    Raises:
        BadMesh, CaptureFailed, BadOptions, NoSolution: as ``plan`` does.
    """
    mesh = Mesh.parse(mesh) if isinstance(mesh, str) else mesh or like.mesh
    options = options or options_of(like, mesh)
    with collection_paused():
        captured = capture(
            model,
            args,
            kwargs,
            loss=options.loss,
            train=options.train,
            precision=options.precision,
        )
    count = options.microbatches if isinstance(options.microbatches, int) else 1
    program = in_microbatches(captured, count, options.rules).program
    own = stage_mesh(mesh) if PIPELINE in mesh.names else mesh
    like, renamed = called_as(like, program)
    carried = carried_pins(like, program, own, options.pins)
    in_stages = PIPELINE in mesh.names
    fuse = options.fuse or bool(like.fusion or like.joined)
    asked = replace(options, pins=carried.pins, fuse=fuse and in_stages, bucket=0)
    found = plan(model, *args, mesh=mesh, options=asked, **kwargs)
    again = tuple(_made_again(like, found))
    if again:
        asked = replace(asked, recompute=(*options.recompute, *again))
        found = plan(model, *args, mesh=mesh, options=asked, **kwargs)
    if fuse and not in_stages:
        found = _fused(found, like, captured, options)
    if options.bucket:
        found = with_buckets_like(found, like, parse_bytes(options.bucket))
    if carried.pins != options.pins:
        status = f"{found.search.status}, {KEPT}"
        found = replace(found, search=replace(found.search, status=status))
    found = _with_pins(found, carried.own, like.options.pins)
    pins = found.options.pins
    unpinned = tuple(name for name in like.options.pins if name not in pins)
    compared = compare_reapplied(like, found)
    return found, replace(compared, renamed=renamed, unpinned=unpinned)


def _with_pins(found: Plan, own: Mapping[str, str], old: Mapping[str, str]) -> Plan:
    """Return the plan with these pins; those that are followed as they were given."""
    given = {name: old.get(name, text) for name, text in own.items()}
    hard = replace(found, options=replace(found.options, pins=given))
    broken = {a.name for a in find_asked(hard).values() if not a.is_followed}
    pins = {name: own[name] if name in broken else given[name] for name in own}
    return replace(found, options=replace(found.options, pins=pins))


def _made_again(old: Document, new: Document) -> Iterator[str]:
    """Yield patterns for what ``old`` makes again and ``new`` can, and does not."""
    boxings = {boxing.key for boxing in new.boxings}
    for key in old.recompute:
        node = new.nodes.get(key)
        is_call = node is not None and not node.role and node.phase is Phase.FORWARD
        if (is_call or key in boxings) and key not in new.recompute:
            yield re.sub(r"([*?[])", r"[\1]", key)


def _fused(found: Plan, like: Plan, captured: Captured, options: Options) -> Plan:
    """Return a plan of one stage with the groups of ``like``, and others that pay."""
    captured = in_microbatches(captured, found.microbatches, options.rules)
    rules = rules_for(captured, options.rules)
    program = ExpandOps(found, rules).run(captured.program)
    program = Recompute(found).run(program)
    return with_fusion_like(found, like, program, rules, more=options.fuse)


def options_of(like: Plan, mesh: Mesh) -> Options:
    """Return the options that ``like`` was made with, as far as they fit ``mesh``.

    Pins are not among them: what they asked for was decided so, or could not be. What
    was added since is asked for what they say of it (carried.py), and the new plan says
    them again.
    """
    own, rows = like.options, len(like.schedule.rows)
    has_stages = len(like.stages) > 1 and PIPELINE in mesh.names
    return Options(
        loss=like.loss_function if own.loss is LossKind.CALLABLE else None,
        hardware=Hardware.from_dict(dict(like.hardware), "hardware"),
        memory=own.memory_bytes,
        optimizer=own.optimizer,
        train=own.train,
        precision=own.precision,
        microbatches=like.microbatches,
        schedule=like.schedule.name if has_stages else "auto",
        stages_per_rank=len(like.stages) // rows if has_stages else 1,
        fuse=bool(like.fusion or like.joined),
    )
