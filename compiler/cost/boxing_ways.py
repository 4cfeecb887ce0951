"""What boxings of a plan allocate on one rank, and how what they make lies there."""

from __future__ import annotations

from collections.abc import Iterable

from partita.compiler.cost import collectives
from partita.compiler.cost.boxing_memory import links
from partita.compiler.cost.bucket_memory import Chained
from partita.compiler.cost.collectives import CollectiveKind, carried_out
from partita.compiler.cost.rank import Rank, Shard
from partita.compiler.cost.step import Step, StepKind, step_wire_bytes
from partita.compiler.cost.unlike_ranks import steps_of
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.uses import type_of

Way = tuple[tuple[Chained, ...], Shard]
"""What a boxing allocates, link by link, and how what it makes lies."""


class Ways:
    """The ways of a plan's boxings on one rank; those that are alike are found once."""

    def __init__(self, document: Document, rank: Rank) -> None:
        self.document = document
        self.rank = rank
        self.known: dict[object, Way] = {}
        self._hardware = load_hardware(document.hardware)

    def of(self, boxing: Boxing, shard: Shard) -> Way:
        """Return what a boxing allocates, in order, of a tensor that lies as given."""
        type_ = type_of(self.document, boxing.ref)
        enters = self.document.nodes[boxing.producer].role is not None
        key = type_, boxing.source, id(boxing.lowering), id(shard), enters
        found = self.known.get(key)
        if found is None:
            steps = steps_of(self.document, boxing)
            found = way_of(type_, steps, shard, self.rank, self._hardware, enters)
            self.known[key] = found
        return found

    def is_exchanged(self, kind: StepKind, payload_bytes: int, axis: str) -> bool:
        """Whether ranks exchange what several tensors put into a collective."""
        mesh, asked = self.rank.mesh, CollectiveKind(kind.value)
        at = mesh.axis(axis)
        carried = carried_out(asked, payload_bytes, mesh, at, self._hardware)
        return carried[0] is not asked


def way_of(
    type_: TensorType,
    steps: Iterable[Step],
    shard: Shard,
    rank: Rank,
    hardware: Hardware,
    enters: bool,
) -> Way:
    """Return what a boxing allocates on a rank, step by step.

    Args:
        type_: of the whole tensor.
        steps: what is done to it.
        shard: how the rank's part of it lies.
        rank: that which holds it.
        hardware: what says how collectives are carried out.
        enters: whether the tensor is held for the whole step.
    """
    chain: list[Chained] = []
    for step in steps:
        is_exchanged = _is_exchanged(type_, step, rank.mesh, hardware)
        allocated = links(
            type_,
            step,
            rank.mesh,
            rank.coordinates,
            in_order=shard.is_in_order,
            enters=enters,
            device=rank.device,
            is_exchanged=is_exchanged,
        )
        enters = enters and step.kind is StepKind.RELABEL
        axis, size = rank.mesh.names[step.axis], rank.mesh.sizes[step.axis]
        is_packed = shard.is_in_order
        for link in allocated:
            is_collective = link.name == step.kind and step.collective is not None
            kind = step.kind if is_collective else None
            chain.append(Chained(link, axis, size, kind, is_packed, is_exchanged))
            is_packed = True
        local = rank.type(type_, step.after)
        if allocated or local != shard.type:
            shard = rank.shard(local)
    return tuple(chain), shard


def _is_exchanged(
    type_: TensorType, step: Step, mesh: Mesh, hardware: Hardware
) -> bool:
    if step.collective is None:
        return False
    wire = step_wire_bytes(type_, step, mesh)
    return collectives.is_exchanged(step.collective, wire, mesh, step.axis, hardware)
