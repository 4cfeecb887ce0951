"""When what a rank sent is known to have come, so that its memory can be let go of.

A backend tells when a message has gone only to whom waits for it, and waiting at the
wrong time is waiting for ever. But a message that came from a rank after it took ours,
by the order of its own row, says that ours had come.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from partita.compiler.plan.wires import SENDS, Wire
from partita.compiler.schedules.schedule import Action, Schedule, Work

_TAKEN_BY = {
    Work.SEND_FORWARD: Work.RECEIVE_FORWARD,
    Work.SEND_BACKWARD: Work.RECEIVE_BACKWARD,
}


def released_at(
    schedule: Schedule, row: int, wires: Sequence[Wire]
) -> Mapping[Action, Sequence[Action]]:
    """Return by an action of a row the sends that have come once it is done.

    A send that no later action of the row tells of is in none.
    """
    found: dict[Action, list[Action]] = {}
    positions = [{action: i for i, action in enumerate(r)} for r in schedule.rows]
    for send in schedule.rows[row]:
        if send.work not in SENDS:
            continue
        told = [
            _first_told(schedule, row, wires, positions, taking)
            for taking in _taken_by(schedule, wires, send)
        ]
        if told and all(action is not None for action in told):
            last = max((a for a in told if a), key=lambda a: positions[row][a])
            found.setdefault(last, []).append(send)
    return found


def _taken_by(
    schedule: Schedule, wires: Sequence[Wire], send: Action
) -> Iterator[Action]:
    """Yield what takes, on other rows, what an action sends."""
    kind, receive = SENDS[send.work], _TAKEN_BY[send.work]
    rows = schedule.rank_of
    stages = {
        wire.transfer.receiver
        for wire in wires
        if wire.kind is kind and wire.transfer.sender == send.stage
    }
    for stage in sorted(stages):
        if rows[stage] != rows[send.stage]:
            yield Action(stage, receive, send.microbatch)


def _first_told(
    schedule: Schedule,
    row: int,
    wires: Sequence[Wire],
    positions: Sequence[Mapping[Action, int]],
    taking: Action,
) -> Action | None:
    """Return the first action of a row that takes what was sent behind ``taking``."""
    other = schedule.rank_of[taking.stage]
    sends = islice(schedule.rows[other], positions[other][taking], None)
    mine = (
        taken
        for send in sends
        if send.work in SENDS
        for taken in _taken_by(schedule, wires, send)
        if taken in positions[row]
    )
    return next(mine, None)  # what it sends comes in the order in which it sends
