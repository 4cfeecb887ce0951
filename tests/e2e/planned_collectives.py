"""What a plan says that a rank puts into its collectives."""

from __future__ import annotations

from collections import Counter

from partita.compiler.cost.collectives import carried_out
from partita.compiler.cost.step import Step, payload_bytes_at
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Boxing
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.uses import times_in_step
from partita.lowering import lowerings_of
from partita.passes.promote_precision import promote_dtype
from partita.runtime.measure import Collective

Counted = Counter[tuple[str, tuple[int, ...], int]]
"""Kind, ranks and payload of collectives, and how many are alike."""


def counted(found: list[Collective]) -> Counted:
    """Return what really ran."""
    return Counter((c.kind, c.ranks, c.payload_bytes) for c in found)


def planned(
    plan: Plan, rank: int, *, is_double: bool, with_entering: bool = True
) -> Counted:
    """Return what the plan says that ``rank`` puts into its collectives in a step.

    ``is_double`` for a model in double precision, ``with_entering`` for a step to
    which parameters come from their optimizers.
    """
    mesh, hardware = plan.mesh, load_hardware(plan.hardware)
    coordinates = mesh.coordinates(rank)
    boxings = {boxing.key: boxing for boxing in plan.boxings}
    steps = lowerings_of(plan)
    together = {key for keys in plan.buckets for key in keys}
    alone = ((key,) for key in boxings if key not in together)
    found: Counted = Counter()
    for keys in (*alone, *plan.buckets):
        first = boxings[keys[0]]
        if first.enters and not with_entering:
            continue
        rows = [_sent(plan, boxings[k], steps[k], is_double=is_double) for k in keys]
        for calls in zip(*rows, strict=True):
            kind, axis = calls[0][1].collective, calls[0][1].axis
            assert kind is not None
            payload = sum(
                payload_bytes_at(type_, step, mesh, coordinates)
                for type_, step in calls
            )
            if payload:
                groups = mesh.groups(mesh.names[axis])
                (group,) = (ranks for ranks in groups if rank in ranks)
                times = times_in_step(first, plan.microbatches)
                carried, put_in = carried_out(kind, payload, mesh, axis, hardware)
                found[str(carried), group, put_in] += times
    return found


def _sent(
    plan: Plan, boxing: Boxing, steps: tuple[Step, ...], *, is_double: bool
) -> list[tuple[TensorType, Step]]:
    """Return the steps of a boxing that call a collective, each with the type."""
    type_ = plan.nodes[boxing.producer].types[boxing.index]
    assert type_ is not None
    if is_double:
        type_ = TensorType(type_.shape, promote_dtype(type_.dtype))
    return [(type_, step) for step in steps if step.collective is not None]
