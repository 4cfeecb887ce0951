"""Between local shards and DTensors, the form in which state leaves a program."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from partita.compiler.errors import BadOptions, BadPlacement
from partita.compiler.ir import dtensor
from partita.compiler.ir.sbp import Placement
from partita.runtime.groups import Groups
from partita.runtime.reshard import plain, reshard
from partita.runtime.shards import take_shard

_RANK = "partita_rank"
"""The attribute of a DTensor that names the rank whose shard it has."""


def to_dtensor(
    shard: torch.Tensor, shape: tuple[int, ...], placement: Placement, groups: Groups
) -> DTensor:
    """Return the logical tensor of ``shape`` as a DTensor, of which this is a shard.

    It shares the shard's memory, but where a split is segmented: DTensor knows no
    such split, so the shard is first exchanged for one of a plain split.
    """
    target = plain(placement)
    shard = reshard(shard.detach(), shape, placement, target, groups)
    found = DTensor.from_local(
        shard,
        groups.device_mesh,
        dtensor.to_dtensor(target),
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )
    setattr(found, _RANK, dist.get_rank())
    return found


def to_shard(value: torch.Tensor, placement: Placement, groups: Groups) -> torch.Tensor:
    """Return this rank's shard of ``value``: a whole tensor, or a DTensor of any mesh.

    A DTensor on the mesh of ``groups`` is never made whole, unless its placement is one
    that Partita does not have.

    Raises:
        BadOptions: for one that another rank has pickled, with the shard of that rank.
    """
    if isinstance(value, DTensor):
        check_rank("state dict: a tensor", value)
        source = _placement_on(value, groups)
        if source is not None:
            local = value.to_local().detach()
            return reshard(local, tuple(value.shape), source, placement, groups)
        value = value.full_tensor()
    return take_shard(value.detach(), placement, groups.mesh, groups.coordinates)


def check_tensor(what: str, value: object) -> None:
    """Check that a value is a tensor.

    Raises:
        BadOptions: naming it as ``what``.
    """
    if not isinstance(value, torch.Tensor):
        raise BadOptions(f"{what} is of type {type(value).__name__}; want a tensor")


def check_rank(what: str, value: DTensor) -> None:
    """Check that a DTensor of a program has not come from another rank.

    Pickled, by ``torch.save`` say, it has the one shard, and does not say whose.

    Raises:
        BadOptions: naming it as ``what``, and both ranks.
    """
    rank, here = getattr(value, _RANK, None), dist.get_rank()
    is_cut = any(not placement.is_replicate() for placement in value.placements)
    if is_cut and rank not in (None, here):
        raise BadOptions(
            f"{what} of shape {list(value.shape)} was saved by rank {rank} with its "
            f"own shard, and this is rank {here}; want it saved by "
            "torch.distributed.checkpoint, or its full_tensor()"
        )


def _placement_on(value: DTensor, groups: Groups) -> Placement | None:
    """Return the placement of ``value`` on the mesh of ``groups``, if it has one."""
    if value.device_mesh != groups.device_mesh:
        return None
    try:
        return dtensor.from_dtensor(value.placements)
    except BadPlacement:  # a strided split, a mean
        return None
