"""Write the transfers into a schedule of compute: sends, receives, what ends a step.

What a stage hands on is sent right behind the action that makes it, and received right
before the one that uses it; earlier where the other rank sends it before something
that is used sooner, so that both ends of a way keep one order. The gradients of a
stage are reduced as soon as its last backward has made and handed on what it does,
while stages before it, and others of the same rank, still go backward.
"""

from __future__ import annotations

from dataclasses import replace

from partita.compiler.schedules.schedule import Action, Schedule, Work

Way = tuple[int, int]
"""The ranks that send and receive."""


def with_transfers(schedule: Schedule) -> Schedule:
    """Return the schedule with sends and receives, reductions and updates."""
    sends: dict[Way, list[Action]] = {}
    rows: list[list[Action]] = []
    for rank, row in enumerate(schedule.rows):
        own: list[Action] = []
        for action in row:
            own.append(action)
            sent = _sent_behind(schedule, action)
            if sent is not None:
                own.append(sent[0])
                to = schedule.rank_of[sent[1].stage]
                sends.setdefault((rank, to), []).append(sent[1])
        rows.append(own)
    return replace(
        schedule,
        rows=tuple(
            (
                *_reduced(_received(schedule, rank, row, sends)),
                *_updates(schedule, rank),
            )
            for rank, row in enumerate(rows)
        ),
    )


def compute_alone(schedule: Schedule) -> Schedule:
    """Return the schedule with nothing but compute."""
    rows = (tuple(a for a in row if a.work.is_compute) for row in schedule.rows)
    return replace(schedule, rows=tuple(rows))


def _sent_behind(schedule: Schedule, action: Action) -> tuple[Action, Action] | None:
    """Return what an action's result is sent by, and what receives it."""
    stage, number = action.stage, action.microbatch
    if action.work is Work.FORWARD:
        send, receive, to = Work.SEND_FORWARD, Work.RECEIVE_FORWARD, stage + 1
    elif action.work in (Work.BACKWARD, Work.BACKWARD_INPUT):
        send, receive, to = Work.SEND_BACKWARD, Work.RECEIVE_BACKWARD, stage - 1
    else:
        return None
    if not 0 <= to < schedule.num_stages:
        return None
    if schedule.rank_of[to] == schedule.rank_of[stage]:
        return None
    return Action(stage, send, number), Action(to, receive, number)


def _received(
    schedule: Schedule, rank: int, row: list[Action], sends: dict[Way, list[Action]]
) -> list[Action]:
    """Return a rank's actions with what it receives before those that use it."""
    coming = {way: list(sent) for way, sent in sends.items() if way[1] == rank}
    source_of = {action: way for way, sent in coming.items() for action in sent}
    here: set[Action] = set()
    found: list[Action] = []
    for action in row:
        wanted = received_for(action)
        if wanted in source_of and wanted not in here:
            queue = coming[source_of[wanted]]
            upto = queue.index(wanted) + 1
            found += queue[:upto]
            here.update(queue[:upto])
            del queue[:upto]
        found.append(action)
    return found


def received_for(action: Action) -> Action | None:
    """Return what receives that which an action takes from another stage, if it does.

    >>> str(received_for(Action(1, Work.BACKWARD_INPUT, 3)))
    '1RECV_B3'
    """
    match action.work:
        case Work.FORWARD:
            work = Work.RECEIVE_FORWARD
        case Work.BACKWARD | Work.BACKWARD_INPUT:
            work = Work.RECEIVE_BACKWARD
        case _:
            return None
    return Action(action.stage, work, action.microbatch)


def _reduced(row: list[Action]) -> list[Action]:
    """Return a rank's actions with reductions, each behind what a stage does last."""
    last = {action.stage: at for at, action in enumerate(row)}
    found: list[Action] = []
    for at, action in enumerate(row):
        found.append(action)
        if last[action.stage] == at:
            found.append(Action(action.stage, Work.REDUCE))
    return found


def _updates(schedule: Schedule, rank: int) -> list[Action]:
    return [
        Action(stage, Work.UPDATE)
        for stage, own in enumerate(schedule.rank_of)
        if own == rank
    ]
