"""What must hold of a schedule before anything runs by it.

Complete: every stage does every microbatch forward and backward, once, on its rank.
Possible: run in order, no rank waits for what can never come. Honest: no stage holds
more microbatches than the schedule claims. In step: what one rank sends another
receives in the same order.
"""

from __future__ import annotations

from collections import Counter

from partita.compiler.errors import BadPlan
from partita.compiler.schedules.schedule import Action, Schedule, Work, needs

_PAIRS = {
    Work.SEND_FORWARD: (Work.RECEIVE_FORWARD, 1),
    Work.SEND_BACKWARD: (Work.RECEIVE_BACKWARD, -1),
}
"""What receives that which is sent, and how many stages further on."""


def check_schedule(schedule: Schedule) -> None:
    """Check that a schedule is complete, possible, honest and in step.

    Raises:
        BadPlan: naming the rank and the action that does not hold.
    """
    _check_places(schedule)
    _check_complete(schedule)
    check_possible(schedule)
    for stage, (live, claim) in enumerate(
        zip(schedule.live(), schedule.most_live, strict=True)
    ):
        if live > claim:
            raise BadPlan(
                f"schedule {schedule.name!r}: stage {stage} holds {live} microbatches "
                f"at once; it claims {claim}"
            )
    _check_in_step(schedule)


def _check_places(schedule: Schedule) -> None:
    for rank, action in schedule.actions():
        number = action.microbatch
        if not 0 <= action.stage < schedule.num_stages:
            wrong = f"there are {schedule.num_stages} stages"
        elif schedule.rank_of[action.stage] != rank:
            wrong = f"that stage is on rank {schedule.rank_of[action.stage]}"
        elif number is not None and not 0 <= number < schedule.num_microbatches:
            wrong = f"there are {schedule.num_microbatches} microbatches"
        elif (number is None) != (action.work in (Work.REDUCE, Work.UPDATE)):
            wrong = "reductions and updates are of all microbatches, the rest of one"
        else:
            continue
        raise BadPlan(f"schedule {schedule.name!r}: rank {rank} has {action}; {wrong}")


def _check_complete(schedule: Schedule) -> None:
    counts = Counter(action for _, action in schedule.actions())
    for stage, rank in enumerate(schedule.rank_of):
        works = [Work.FORWARD, Work.BACKWARD]
        if stage in schedule.cut:
            works = [Work.FORWARD, Work.BACKWARD_INPUT, Work.BACKWARD_WEIGHT]
        for number in range(schedule.num_microbatches):
            for work in works:
                counts.setdefault(Action(stage, work, number), 0)
            if stage in schedule.cut and counts[Action(stage, Work.BACKWARD, number)]:
                raise BadPlan(
                    f"schedule {schedule.name!r}: rank {rank} has {stage}B{number}, "
                    "but other backwards of the stage are cut in two"
                )
    for action, count in counts.items():
        if count != 1:
            rank = schedule.rank_of[action.stage]
            raise BadPlan(
                f"schedule {schedule.name!r}: rank {rank} has {action} {count} times; "
                "want it once"
            )


def check_possible(schedule: Schedule) -> None:
    """Check that ranks that run their actions in order all come to their end.

    Raises:
        BadPlan: naming an action that waits for ever, and for what.
    """
    at = [0] * len(schedule.rows)
    done: set[Action] = set()
    waiting: dict[Action, list[int]] = {}
    ready = list(range(len(schedule.rows)))
    while ready:
        rank = ready.pop()
        row = schedule.rows[rank]
        while at[rank] < len(row):
            action = row[at[rank]]
            lacking = [a for a in _before(schedule, action) if a not in done]
            if lacking:
                waiting.setdefault(lacking[0], []).append(rank)
                break
            done.add(action)
            at[rank] += 1
            ready += waiting.pop(action, [])
    stuck = [rank for rank, row in enumerate(schedule.rows) if at[rank] < len(row)]
    if stuck:
        raise BadPlan(_first_cause(schedule, stuck[0], at, done))


def _first_cause(
    schedule: Schedule, rank: int, at: list[int], done: set[Action]
) -> str:
    """Tell what a rank waits for: what nobody does, or what waits for it in turn."""
    seen: set[int] = set()
    while True:
        seen.add(rank)
        action = schedule.rows[rank][at[rank]]
        lacking = next(a for a in _before(schedule, action) if a not in done)
        other = schedule.rank_of[lacking.stage]
        never = lacking not in schedule.rows[other]
        if never or other in seen:
            there = schedule.rows[other][at[other] :]
            where = "never does" if never else f"has behind {there[0]}"
            return (
                f"schedule {schedule.name!r}: rank {rank} waits for ever: {action} "
                f"needs {lacking}, which rank {other} {where}"
            )
        rank = other


def _before(schedule: Schedule, action: Action) -> list[Action]:
    """Return what must be done before an action."""
    stage, number = action.stage, action.microbatch
    match action.work:
        case Work.SEND_FORWARD:
            return [Action(stage, Work.FORWARD, number)]
        case Work.SEND_BACKWARD:
            is_cut = stage in schedule.cut
            work = Work.BACKWARD_INPUT if is_cut else Work.BACKWARD
            return [Action(stage, work, number)]
        case Work.RECEIVE_FORWARD:
            return [Action(stage - 1, Work.SEND_FORWARD, number)]
        case Work.RECEIVE_BACKWARD:
            return [Action(stage + 1, Work.SEND_BACKWARD, number)]
        case Work.REDUCE | Work.UPDATE:
            return []
        case _:
            return needs(schedule, action)


def _check_in_step(schedule: Schedule) -> None:
    """Check that what is sent from rank to rank is received in the same order."""
    sent: dict[tuple[int, int], list[Action]] = {}
    received: dict[tuple[int, int], list[Action]] = {}
    for rank, action in schedule.actions():
        if action.work in _PAIRS:
            work, step = _PAIRS[action.work]
            stage = action.stage + step
            to = schedule.rank_of[stage]
            sent.setdefault((rank, to), []).append(
                Action(stage, work, action.microbatch)
            )
        elif action.work in (Work.RECEIVE_FORWARD, Work.RECEIVE_BACKWARD):
            step = -1 if action.work is Work.RECEIVE_FORWARD else 1
            source = schedule.rank_of[action.stage + step]
            received.setdefault((source, rank), []).append(action)
    for way in sorted({*sent, *received}):
        ours, theirs = sent.get(way, []), received.get(way, [])
        if ours != theirs:
            pairs = zip([*ours, None], [*theirs, None], strict=False)
            first, second = next((a, b) for a, b in pairs if a != b)
            raise BadPlan(
                f"schedule {schedule.name!r}: rank {way[0]} sends rank {way[1]} what "
                f"is for {first or 'nothing'}, where that one awaits "
                f"{second or 'nothing'}"
            )
