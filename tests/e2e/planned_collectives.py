"""What a plan says that a rank puts into its collectives."""

from __future__ import annotations

from collections import Counter

from partita.compiler.cost.step import payload_bytes_at
from partita.compiler.ir.tensor_type import TensorType
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
    mesh = plan.mesh
    coordinates = mesh.coordinates(rank)
    boxings = {boxing.key: boxing for boxing in plan.boxings}
    found: Counted = Counter()
    for key, steps in lowerings_of(plan).items():
        boxing = boxings[key]
        if boxing.enters and not with_entering:
            continue
        times = times_in_step(boxing, plan.microbatches)
        type_ = plan.nodes[boxing.producer].types[boxing.index]
        assert type_ is not None
        if is_double:
            type_ = TensorType(type_.shape, promote_dtype(type_.dtype))
        for step in steps:
            payload = payload_bytes_at(type_, step, mesh, coordinates)
            if step.collective is not None and payload:
                groups = mesh.groups(mesh.names[step.axis])
                (group,) = (ranks for ranks in groups if rank in ranks)
                found[str(step.collective), group, payload] += times
    return found
