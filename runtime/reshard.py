"""Give a tensor another placement, on the real ranks of a mesh, all to all.

For what happens between steps: checkpoints and outputs. Any splits and copies turn
into any others, segmented ones too, and no rank holds more than its old shard, its
new one and the messages. Every element travels from one rank that holds it: along an
axis that holds copies, from the copy at the receiver's own coordinate.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist

from partita.compiler.ir.layout import shard_runs, shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Reduction, Split
from partita.compiler.ir.transfer import Region, common_regions
from partita.runtime.extremes import over_ranks
from partita.runtime.groups import Groups
from partita.runtime.transfer import as_bytes, pack, unpack

_REDUCE = {
    Reduction.SUM: dist.ReduceOp.SUM,
    Reduction.MAX: dist.ReduceOp.MAX,
    Reduction.MIN: dist.ReduceOp.MIN,
}


def plain(placement: Placement) -> Placement:
    """Return ``placement`` with its splits unsegmented, as DTensor knows them."""
    return Placement(
        tuple(Split(s.dim) if isinstance(s, Split) else s for s in placement.shardings)
    )


def reshard(
    shard: torch.Tensor,
    shape: tuple[int, ...],
    source: Placement,
    target: Placement,
    groups: Groups,
) -> torch.Tensor:
    """Return this rank's part of the logical tensor of ``shape`` under ``target``.

    All ranks of the mesh call it together. Partial axes are reduced first; the
    target has none.
    """
    assert not target.has_partial
    shard, source = _reduce_partial(shard, source, groups)
    if source == target:
        return shard
    mesh, here = groups.mesh, groups.coordinates
    others = mesh.all_coordinates()
    outgoing = [regions(shape, source, target, mesh, here, to)[0] for to in others]
    incoming = [regions(shape, source, target, mesh, at, here)[1] for at in others]
    result = shard.new_empty(shard_shape(shape, target, mesh, here))
    sizes = [sum(result[region].numel() for region in part) for part in incoming]
    sent_sizes = [sum(shard[region].numel() for region in part) for part in outgoing]
    sent = pack(shard, [region for part in outgoing for region in part])
    received = shard.new_empty(sum(sizes))
    _exchange(sent.split(sent_sizes), received.split(sizes), groups)
    unpack(received, [region for part in incoming for region in part], result)
    return result


def _exchange(
    sent: Sequence[torch.Tensor], received: Sequence[torch.Tensor], groups: Groups
) -> None:
    """Send to each rank of the mesh, and receive from each, what is theirs.

    One by one, since the ranks of a stage have no group of their own.
    """
    messages: list[dist.P2POp] = []
    ranks: list[int] = groups.device_mesh.mesh.flatten().tolist()
    for rank, out, into in zip(ranks, sent, received, strict=True):
        if rank == dist.get_rank():
            into.copy_(out)
            continue
        if out.numel():
            messages.append(dist.P2POp(dist.isend, as_bytes(out), rank))
        if into.numel():
            messages.append(dist.P2POp(dist.irecv, as_bytes(into), rank))
    for work in dist.batch_isend_irecv(messages) if messages else ():
        work.wait()


def _reduce_partial(
    shard: torch.Tensor, source: Placement, groups: Groups
) -> tuple[torch.Tensor, Placement]:
    for axis, sharding in reversed(list(enumerate(source.shardings))):
        if isinstance(sharding, Partial):
            reduction, group = sharding.reduction, groups.device_mesh.get_group(axis)
            join = partial(dist.all_reduce, op=_REDUCE[reduction], group=group)
            shard = over_ranks(shard, reduction, join)
            source = source.with_axis(axis, Broadcast())
    return shard, source


def regions(
    shape: tuple[int, ...],
    source: Placement,
    target: Placement,
    mesh: Mesh,
    sender: tuple[int, ...],
    receiver: tuple[int, ...],
) -> tuple[tuple[Region, ...], tuple[Region, ...]]:
    """Return the blocks that go from ``sender`` to ``receiver``, in order.

    First where they lie in the shard of the one, then in that of the other.
    """
    for sharding, at, to in zip(source.shardings, sender, receiver, strict=True):
        if isinstance(sharding, Broadcast) and at != to:
            return (), ()
    return common_regions(
        shard_runs(shape, source, mesh, sender),
        shard_runs(shape, target, mesh, receiver),
    )
