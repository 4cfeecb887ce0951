"""Move a tensor from one stage's ranks to another's: in one process, or between ranks.

``compiler/ir/transfer.py`` says who sends what. Between ranks nobody waits before it
has to: what comes is asked for early, and what is sent goes while the sender computes
on. Messages of one tensor have one tag; over gloo those of several tensors may pass
each other. NCCL knows no tags, and what two ranks send each other waits in one line:
there both begin their transfers, of either direction, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.transfer import Message, Placed, Region, transfer


def move(
    shape: tuple[int, ...],
    source: Placed,
    target: Placed,
    shards: Mapping[int, torch.Tensor],
) -> dict[int, torch.Tensor]:
    """Return the target's shards by rank, given the source's; all in this process.

    >>> from partita.compiler.ir.mesh import Mesh
    >>> from partita.compiler.ir.sbp import Placement
    >>> source = Placed(Mesh(tp=2), (0, 1), Placement.parse("S(0)"))
    >>> target = Placed(Mesh(tp=1), (2,), Placement.parse("B"))
    >>> move((3,), source, target, {0: torch.tensor([5, 6]), 1: torch.tensor([7])})
    {2: tensor([5, 6, 7])}
    """
    like = shards[source.ranks[0]]
    moved = {
        rank: like.new_empty(shard_shape(shape, target.placement, target.mesh, coords))
        for rank, coords in zip(
            target.ranks, target.mesh.all_coordinates(), strict=True
        )
    }
    for message in transfer(shape, source, target):
        _copy(message, shards[message.sender], moved[message.receiver])
    return moved


@dataclass(frozen=True)
class Sending:
    """What this rank has under way to others.

    The shard that was sent stays as it is until ``wait`` returns, and this is kept as
    long: parts of it may go from where they lie.
    """

    works: tuple[dist.Work, ...]
    buffers: tuple[torch.Tensor, ...]

    def wait(self) -> None:
        """Wait until everything has gone."""
        for work in self.works:
            work.wait()


def send(
    shard: torch.Tensor,
    messages: Iterable[Message],
    tag: int = 0,
    group: dist.ProcessGroup | None = None,
) -> Sending:
    """Begin to send what is this rank's of ``messages``, parts of its ``shard``.

    ``group`` is one of all ranks; it carries the messages of two ranks in one order.
    """
    rank = dist.get_rank()
    own = [m for m in messages if m.on_wire and m.sender == rank]
    buffers = tuple(pack(shard, message.taken) for message in own)
    works = tuple(
        _under_way(dist.isend(as_bytes(buffer), message.receiver, group, tag))
        for message, buffer in zip(own, buffers, strict=True)
    )
    return Sending(works, buffers)


@dataclass(frozen=True)
class Arrival:
    """A message that this rank expects.

    ``buffer`` is a part of the shard itself where all of it lies together there.
    """

    message: Message
    work: dist.Work
    buffer: torch.Tensor
    in_place: bool


@dataclass(frozen=True)
class Pending:
    """A shard that others are sending to this rank."""

    shard: torch.Tensor
    arrivals: tuple[Arrival, ...]
    kept: Message | None

    def wait(self, held: torch.Tensor | None = None) -> torch.Tensor:
        """Return the shard once it is whole.

        Args:
            held: this rank's shard of the source, for a rank of both stages.
        """
        if self.kept is not None:
            assert held is not None, "this rank keeps a part of what it held"
            _copy(self.kept, held, self.shard)
        for arrival in self.arrivals:
            arrival.work.wait()
            if not arrival.in_place:
                unpack(arrival.buffer, arrival.message.put, self.shard)
        return self.shard


def receive(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device,
    messages: Iterable[Message],
    tag: int = 0,
    group: dist.ProcessGroup | None = None,
) -> Pending:
    """Begin to receive what is this rank's of ``messages``.

    Args:
        shape: of this rank's shard of the target.
        dtype: of the tensor.
        device: that the shard is made on.
        messages: of the whole transfer, or those of this rank.
        tag: what the senders call the tensor.
        group: that which the senders use.
    """
    rank = dist.get_rank()
    own = [message for message in messages if message.receiver == rank]
    shard = torch.empty(shape, dtype=dtype, device=device)
    kept = next((message for message in own if not message.on_wire), None)
    arrivals = tuple(_arrival(shard, m, tag, group) for m in own if m.on_wire)
    return Pending(shard, arrivals, kept)


def as_bytes(flat: torch.Tensor) -> torch.Tensor:
    """Return a flat tensor as bytes: backends know few dtypes, and all know these."""
    return flat.view(torch.uint8)


def pack(shard: torch.Tensor, regions: Sequence[Region]) -> torch.Tensor:
    """Return the regions, flat and one after another; a flat one is not copied."""
    parts = [shard[region].contiguous().view(-1) for region in regions]
    return parts[0] if len(parts) == 1 else torch.cat([shard.new_empty(0), *parts])


def unpack(flat: torch.Tensor, regions: Sequence[Region], shard: torch.Tensor) -> None:
    """Put what ``pack`` returned into the regions of ``shard``."""
    position = 0
    for region in regions:
        block = shard[region]
        part = flat[position : position + block.numel()]
        block.copy_(part.view(block.shape))
        position += block.numel()


def _arrival(
    shard: torch.Tensor, message: Message, tag: int, group: dist.ProcessGroup | None
) -> Arrival:
    first = shard[message.put[0]]
    in_place = len(message.put) == 1 and first.is_contiguous()
    buffer = first.view(-1) if in_place else shard.new_empty(message.numel)
    work = _under_way(dist.irecv(as_bytes(buffer), message.sender, group, tag))
    return Arrival(message, work, buffer, in_place)


def _under_way(work: dist.Work | None) -> dist.Work:
    assert work is not None  # every rank is in the group of all
    return work


def _copy(message: Message, sender: torch.Tensor, receiver: torch.Tensor) -> None:
    for taken, put in zip(message.taken, message.put, strict=True):
        receiver[put] = sender[taken]
