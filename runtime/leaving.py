"""What leaves a forward: the outputs of the model, over all microbatches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import OutputKind
from partita.compiler.ir.sbp import Placement
from partita.runtime.executor import Outputs
from partita.runtime.groups import Groups
from partita.runtime.microbatches import joined
from partita.runtime.reshard import reshard

WholeOutputs = dict[str, tuple[torch.Tensor, tuple[int, ...], Placement]]
"""Outputs by name: this rank's shard, the logical shape and the placement."""

_OF_THE_MODEL = (OutputKind.LOSS, OutputKind.OUTPUT)


def leaving(
    local: LocalProgram, runs: Sequence[Outputs], groups: Groups
) -> WholeOutputs:
    """Return the outputs of the whole batch.

    Args:
        local: what ran.
        runs: what each microbatch made.
        groups: the ranks that ran it.
    """
    whole = Placement.broadcast(local.mesh.ndim)
    found: WholeOutputs = {}
    for position, role in enumerate(local.outputs):
        values = [x for run in runs if (x := run.get(role)) is not None]
        if role.kind not in _OF_THE_MODEL or not values:
            continue
        type_ = local.output_types[position]
        placement = local.output_placements[position]
        assert type_ is not None
        assert placement is not None
        shape = type_.shape
        if not local.in_time.joins:
            (value,) = values
            found[role.name] = value, shape, placement
            continue
        parts = [reshard(x, shape, placement, whole, groups) for x in values]
        value = joined(parts, local.in_time.joins[position])
        found[role.name] = value, tuple(value.shape), whole
    return found


def made_whole(outputs: WholeOutputs, groups: Groups) -> dict[str, torch.Tensor]:
    """Return outputs of a stage, whole on each of its ranks, by name."""
    whole = Placement.broadcast(groups.mesh.ndim)
    return {
        name: reshard(x, shape, placed, whole, groups)
        for name, (x, shape, placed) in outputs.items()
    }
