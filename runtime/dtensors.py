"""Between local shards and DTensors, the form in which state leaves a program."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor import placement_types as dtensor_types

from partita.compiler.ir import sbp
from partita.compiler.ir.sbp import Placement
from partita.runtime.groups import Groups
from partita.runtime.reshard import plain, reshard
from partita.runtime.shards import take_shard


def to_dtensor(
    shard: torch.Tensor, shape: tuple[int, ...], placement: Placement, groups: Groups
) -> DTensor:
    """Return the logical tensor of ``shape`` as a DTensor, of which this is a shard.

    It shares the shard's memory, but where a split is segmented: DTensor knows no
    such split, so the shard is first exchanged for one of a plain split.
    """
    shard = reshard(shard.detach(), shape, placement, plain(placement), groups)
    return DTensor.from_local(
        shard,
        groups.device_mesh,
        [_to_dtensor_placement(sharding) for sharding in placement.shardings],
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )


def to_shard(value: torch.Tensor, placement: Placement, groups: Groups) -> torch.Tensor:
    """Return this rank's shard of ``value``: a whole tensor, or a DTensor of any mesh.

    A DTensor on the mesh of ``groups`` is never made whole.
    """
    if isinstance(value, DTensor):
        if value.device_mesh == groups.device_mesh:
            source = Placement(tuple(map(_from_dtensor_placement, value.placements)))
            local = value.to_local().detach()
            return reshard(local, tuple(value.shape), source, placement, groups)
        value = value.full_tensor()
    return take_shard(value.detach(), placement, groups.mesh, groups.coordinates)


def _to_dtensor_placement(sharding: sbp.Sharding) -> dtensor_types.Placement:
    match sharding:
        case sbp.Split(dim):
            return Shard(dim)
        case sbp.Partial(reduction):
            return Partial(str(reduction))
        case sbp.Broadcast():
            return Replicate()


def _from_dtensor_placement(placement: dtensor_types.Placement) -> sbp.Sharding:
    match placement:
        case Shard(dim=dim):
            return sbp.Split(dim)
        case Partial(reduce_op=reduction):
            return sbp.Partial(sbp.Reduction(reduction))
        case _:
            return sbp.Broadcast()
