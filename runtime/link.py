"""A transfer between stages, as one rank sees it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.ir.transfer import Message, Placed, transfer
from partita.compiler.plan.wires import Wire
from partita.compiler.schedules.schedule import Schedule
from partita.runtime.transfer import Pending, Sending, receive, send


class Link:
    """A wire, and what of it is this rank's to send and to receive.

    Attributes:
        wire: what is moved.
        takes: whether this rank gets a part of it.
        is_within: whether both stages are on the same ranks.
    """

    def __init__(
        self, number: int, wire: Wire, schedule: Schedule, group: dist.ProcessGroup
    ) -> None:
        rank = dist.get_rank()
        self.wire = wire
        self._group = group
        self.takes = rank in wire.target.ranks
        rows = schedule.rank_of
        sender, receiver = wire.transfer.sender, wire.transfer.receiver
        self.is_within = rows[sender] == rows[receiver]
        self._first_tag = number * schedule.num_microbatches
        every = transfer(wire.type.shape, wire.source, wire.target)
        self._messages: tuple[Message, ...] = tuple(
            m for m in every if rank in (m.sender, m.receiver)
        )
        self._shape = _own_shape(wire.type, wire.target, rank) if self.takes else ()

    def sends_from(self, stage: int) -> bool:
        """Whether it begins at a stage."""
        return self.wire.transfer.sender == stage

    def send(self, shard: torch.Tensor, number: int = 0) -> Sending:
        """Begin to send this rank's shard of what a microbatch made."""
        return send(shard, self._messages, self._first_tag + number, self._group)

    def receive(self, device: torch.device, number: int = 0) -> Pending:
        """Begin to receive this rank's shard of what a microbatch made elsewhere."""
        tag, dtype = self._first_tag + number, self.wire.type.dtype
        return receive(self._shape, dtype, device, self._messages, tag, self._group)


def _own_shape(type_: TensorType, placed: Placed, rank: int) -> tuple[int, ...]:
    here = placed.coordinates(rank)
    return shard_shape(type_.shape, placed.placement, placed.mesh, here)
