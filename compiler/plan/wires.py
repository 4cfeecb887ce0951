"""What a transfer of a plan moves, from which ranks to which, and what it is called."""

from __future__ import annotations

from dataclasses import dataclass

from partita.compiler.ir.program import InputKind, OutputKind, OutputRole
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.stages import at_stage, sent_name, shared_gradient_name
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.ir.transfer import Placed, received_bytes, sent_bytes, transfer
from partita.compiler.plan.document import Document
from partita.compiler.plan.stage_records import Transfer, TransferKind
from partita.compiler.schedules.schedule import Work

SENDS = {
    Work.SEND_FORWARD: TransferKind.FORWARD,
    Work.SEND_BACKWARD: TransferKind.BACKWARD,
}
"""What an action that sends hands over."""

RECEIVES = {
    Work.RECEIVE_FORWARD: TransferKind.FORWARD,
    Work.RECEIVE_BACKWARD: TransferKind.BACKWARD,
}
"""What an action that receives waits for."""

_ENTERS = {
    TransferKind.FORWARD: InputKind.RECEIVED_FORWARD,
    TransferKind.BACKWARD: InputKind.RECEIVED_BACKWARD,
    TransferKind.STATE: InputKind.SHARED,
}


@dataclass(frozen=True)
class Wire:
    """A transfer with all that carrying it out takes.

    Attributes:
        transfer: what the plan says.
        type: the logical type of what is moved.
        source: how it lies on the sending stage's ranks.
        target: how it is to lie on the receiving stage's.
    """

    transfer: Transfer
    type: TensorType
    source: Placed
    target: Placed

    @property
    def kind(self) -> TransferKind:
        """When it is moved."""
        return self.transfer.kind

    @property
    def leaves(self) -> OutputRole:
        """The output of the sending stage that is moved; state is none."""
        name, receiver = self.transfer.name, self.transfer.receiver
        match self.kind:
            case TransferKind.FORWARD:
                return OutputRole(OutputKind.SENT_FORWARD, sent_name(name, receiver))
            case TransferKind.BACKWARD:
                return OutputRole(OutputKind.SENT_BACKWARD, sent_name(name, receiver))
            case _:
                name = shared_gradient_name(name, self.transfer.sender)
                return OutputRole(OutputKind.SHARED_GRADIENT, name)

    @property
    def enters(self) -> tuple[InputKind, str]:
        """The kind and name of what it is to the receiving stage; gradients add up."""
        return _ENTERS[self.kind], self.transfer.name

    @property
    def joins(self) -> OutputRole:
        """The gradient that a part is added to, at home."""
        return OutputRole(OutputKind.GRADIENT, self.transfer.name)


def wires_of(document: Document) -> tuple[Wire, ...]:
    """Return the wires of the transfers that a plan states, in their order."""
    return tuple(_wire(document, transfer) for transfer in document.transfers)


def _wire(document: Document, transfer: Transfer) -> Wire:
    return Wire(
        transfer,
        _type_of(document, transfer),
        _placed(document, transfer.sender, transfer.source),
        _placed(document, transfer.receiver, transfer.target),
    )


def _type_of(document: Document, transfer: Transfer) -> TensorType:
    if transfer.kind.is_of_microbatch:
        entering = document.nodes[at_stage(transfer.name, transfer.receiver)]
        (type_,) = entering.types
        assert type_ is not None
        return type_
    known = document.parameters.get(transfer.name) or document.buffers[transfer.name]
    return known.type


def _placed(document: Document, stage: int, placement: Placement) -> Placed:
    own = document.stages[stage]
    return Placed(own.mesh, own.ranks, placement)


def busiest_bytes(wire: Wire) -> int:
    """Return what the rank that sends or takes most of a transfer does, each time."""
    messages = transfer(wire.type.shape, wire.source, wire.target)
    itemsize = wire.type.dtype.itemsize
    sent = (sent_bytes(messages, rank, itemsize) for rank in wire.source.ranks)
    taken = (received_bytes(messages, rank, itemsize) for rank in wire.target.ranks)
    return max((*sent, *taken), default=0)
