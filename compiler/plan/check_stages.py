"""Check what a plan of several stages says of them together."""

from __future__ import annotations

from dataclasses import replace

from partita.compiler.errors import BadPlan
from partita.compiler.ir.program import OutputKind
from partita.compiler.plan.document import Document
from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.plan.stages import (
    find_homes,
    find_transfers,
    read_schedule,
    stage_documents,
)
from partita.compiler.plan.uses import type_of
from partita.compiler.plan.wires import wires_of
from partita.compiler.schedules.check import check_carried_out, check_schedule
from partita.compiler.schedules.schedule import Action, Work
from partita.compiler.search.arrangement import whole_mesh

_MOVES = {
    TransferKind.FORWARD: (Work.SEND_FORWARD, Work.RECEIVE_FORWARD, Work.FORWARD),
    TransferKind.BACKWARD: (Work.SEND_BACKWARD, Work.RECEIVE_BACKWARD, Work.BACKWARD),
}
"""What sends a transfer of a microbatch, what receives it, and what takes it."""


def check_stages(document: Document) -> None:
    """Check ranks, schedule and transfers of the stages of a plan.

    What each stage says for itself has been checked.

    Raises:
        BadPlan: naming the key, what was found and what is wanted.
    """
    if len(document.stages) == 1:
        _check_alone(document)
        return
    _check_ranks(document)
    _check_homes(document)
    _check_schedule(document)
    _check_transfers(document)
    _check_moved(document)


def _check_alone(document: Document) -> None:
    """Check that one stage hands on nothing, and that its row does all it has to."""
    if document.transfers:
        found = len(document.transfers)
        raise BadPlan(f"transfers: found {found}, wanted none: there is one stage")
    found = len(document.schedule.most_live)
    if found != 1:
        raise BadPlan(f"schedule.most_live: found {found} entries, wanted 1")
    if document.schedule.rows:
        check_schedule(read_schedule(document))


def _check_ranks(document: Document) -> None:
    """Check that the ranks of all stages are those of the mesh, in no two groups."""
    owner: dict[int, tuple[int, ...]] = {}
    for index, stage in enumerate(document.stages):
        for rank in stage.ranks:
            if sorted(owner.setdefault(rank, stage.ranks)) != sorted(stage.ranks):
                raise BadPlan(
                    f"stages[{index}].ranks: rank {rank} is also in a stage of other "
                    "ranks; want stages on the same ranks, or on none in common"
                )
    wanted = set(range(document.mesh.size))
    if set(owner) != wanted:
        odd = min(set(owner) ^ wanted)
        raise BadPlan(
            f"stages: rank {odd} is in {'no' if odd in wanted else 'a'} stage; want "
            f"the {len(wanted)} ranks of mesh {document.mesh}"
        )


def _check_homes(document: Document) -> None:
    """Check that parameters are at home where their nodes are."""
    homes = find_homes(stage_documents(document))
    for name, parameter in document.parameters.items():
        found, wanted = parameter.homes, homes.get(name, parameter.homes)
        if found != wanted:
            raise BadPlan(
                f"parameters.{name}.homes: found {list(found)}, wanted {list(wanted)}, "
                "the stages that take it, the one that updates it first"
            )


def _check_schedule(document: Document) -> None:
    stated = document.schedule
    num = len(document.stages)
    for name, found in (("rank_of", stated.rank_of), ("most_live", stated.most_live)):
        if len(found) != num:
            raise BadPlan(f"schedule.{name}: found {len(found)} entries, wanted {num}")
    rows = len(stated.rows)
    ranks: dict[int, frozenset[int]] = {}
    for index, (row, stage) in enumerate(
        zip(stated.rank_of, document.stages, strict=True)
    ):
        if row >= rows:
            raise BadPlan(
                f"schedule.rank_of[{index}]: found {row}; there are {rows} rows"
            )
        own = frozenset(stage.ranks)
        if ranks.setdefault(row, own) != own:
            raise BadPlan(
                f"schedule.rank_of[{index}]: stage {index} is on other ranks than the "
                f"first stage of row {row}"
            )
    if len(set(ranks.values())) != len(ranks):
        raise BadPlan("schedule.rank_of: found two rows of the same ranks; want one")
    schedule = read_schedule(document)
    check_carried_out(schedule)
    wanted = whole_mesh([stage.mesh for stage in document.stages], schedule)
    if document.mesh != wanted:
        raise BadPlan(
            f"mesh: found {document.mesh}, wanted {wanted}, as the stages are of"
        )


def _check_moved(document: Document) -> None:
    """Check that rows move what other rows take of every microbatch, before its use."""
    schedule = read_schedule(document)
    positions = [{action: i for i, action in enumerate(row)} for row in schedule.rows]
    checked: set[tuple[TransferKind, int, int]] = set()
    for index, transfer in enumerate(document.transfers):
        kind, sender, receiver = transfer.kind, transfer.sender, transfer.receiver
        ends = schedule.rank_of[sender], schedule.rank_of[receiver]
        if (
            kind not in _MOVES
            or ends[0] == ends[1]
            or (kind, sender, receiver) in checked
        ):
            continue
        checked.add((kind, sender, receiver))
        send, receive, use = _MOVES[kind]
        if receiver in schedule.cut and use is Work.BACKWARD:
            use = Work.BACKWARD_INPUT
        for number in range(schedule.num_microbatches):
            sending = Action(sender, send, number)
            receiving, using = (Action(receiver, w, number) for w in (receive, use))
            at, there = positions[ends[1]], len(positions[ends[1]])
            if sending not in positions[ends[0]]:
                wrong = f"row {ends[0]} has no {sending}"
            elif at.get(receiving, there) > at[using]:
                wrong = f"row {ends[1]} has no {receiving} before {using}"
            else:
                continue
            raise BadPlan(
                f"transfers[{index}]: {wrong}; want it, as stage {receiver} takes "
                f"{transfer.name!r} from stage {sender}, on row {ends[0]}"
            )


def _check_transfers(document: Document) -> None:
    """Check that what a stage takes is sent, and what is sent is taken."""
    wanted = {t: t for t in find_transfers(document)}
    for index, transfer in enumerate(document.transfers):
        plain = replace(transfer, bytes=0, seconds=0.0)
        if wanted.pop(plain, None) is None:
            raise BadPlan(
                f"transfers[{index}]: stage {transfer.receiver} does not take "
                f"{transfer.name!r} so from stage {transfer.sender}"
            )
    for transfer in wanted:
        raise BadPlan(
            f"transfers: found none of {transfer.name!r} from stage {transfer.sender} "
            f"to {transfer.receiver}, which takes it {transfer.kind}"
        )
    taken = {wire.leaves: wire for wire in wires_of(document)}
    for output in document.outputs:
        if not (output.kind.is_sent or output.kind is OutputKind.SHARED_GRADIENT):
            continue
        wire = next((w for role, w in taken.items() if str(role) == str(output)), None)
        if wire is None:
            raise BadPlan(f"outputs: no stage takes {str(output)!r}")
        assert output.value is not None
        type_ = type_of(document, output.value)
        if type_ != wire.type:
            raise BadPlan(
                f"transfers: {wire.transfer.name!r} is {type_} where it is made, and "
                f"{wire.type} in stage {wire.transfer.receiver}"
            )
