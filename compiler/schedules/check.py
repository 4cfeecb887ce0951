"""What must hold of a schedule before anything runs by it.

Complete: every stage does every microbatch forward and backward, once, on its rank.
Possible: run in order, no rank waits for what can never come. Honest: no stage holds
more microbatches than the schedule claims. In step: what one rank sends another
receives in the same order. What ranks run by says of all that passes between them, too.
"""

from __future__ import annotations

from collections import Counter

from partita.compiler.errors import BadPlan
from partita.compiler.schedules.schedule import Action, Schedule, Work, needs
from partita.compiler.schedules.transfers import received_for

_PAIRS = {
    Work.SEND_FORWARD: (Work.RECEIVE_FORWARD, 1),
    Work.SEND_BACKWARD: (Work.RECEIVE_BACKWARD, -1),
}
"""What receives that which is sent, and how many stages further on."""

_RECEIVED_FROM = {receive: -step for receive, step in _PAIRS.values()}
"""How many stages further on that is which sends what is received."""

_FURTHER = {send: step for send, (_, step) in _PAIRS.items()} | _RECEIVED_FROM
"""How many stages further on the other end of a message is."""

_OF_ALL = (Work.REDUCE, Work.UPDATE)


def check_schedule(schedule: Schedule) -> None:
    """Check that a schedule is complete, possible, honest and in step.

    Raises:
        BadPlan: naming the rank and the action that does not hold.
    """
    num_rows, num_ranks = len(schedule.rows), len(set(schedule.rank_of))
    if num_rows != num_ranks:
        raise BadPlan(
            f"schedule {schedule.name!r}: {num_rows} rows for stages on {num_ranks} "
            "ranks; want a row for each"
        )
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


def check_carried_out(schedule: Schedule) -> None:
    """Check a schedule that ranks run by: that they receive what they use, too.

    Nor does it claim more than there is: by its claim it is known what ranks hold.

    Raises:
        BadPlan: as ``check_schedule`` does.
    """
    check_schedule(schedule)
    for stage, claim in enumerate(schedule.most_live):
        if claim > schedule.num_microbatches:
            raise BadPlan(
                f"schedule {schedule.name!r}: stage {stage} claims to hold {claim} "
                f"microbatches at once; there are {schedule.num_microbatches}"
            )
    for rank, row in enumerate(schedule.rows):
        there: set[Action] = set()
        for action in row:
            there.add(action)
            received = received_for(action)
            for used in needs(schedule, action):
                source = schedule.rank_of[used.stage]
                if source != rank and received not in there:
                    raise BadPlan(
                        f"schedule {schedule.name!r}: rank {rank} has {action}, which "
                        f"uses what {used} makes on rank {source}; want {received} "
                        "before it"
                    )


def _check_places(schedule: Schedule) -> None:
    for rank, action in schedule.actions():
        number = action.microbatch
        if not 0 <= action.stage < schedule.num_stages:
            wrong = f"there are {schedule.num_stages} stages"
        elif schedule.rank_of[action.stage] != rank:
            wrong = f"that stage is on rank {schedule.rank_of[action.stage]}"
        elif number is not None and not 0 <= number < schedule.num_microbatches:
            wrong = f"there are {schedule.num_microbatches} microbatches"
        elif (number is None) != (action.work in _OF_ALL):
            wrong = "reductions and updates are of all microbatches, the rest of one"
        elif not 0 <= action.stage + _FURTHER.get(action.work, 0) < schedule.num_stages:
            place = "first" if action.stage == 0 else "last"
            wrong = f"that stage is the {place}"
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
            is_cut = stage in schedule.cut
            work = Work.BACKWARD_WEIGHT if is_cut else Work.BACKWARD
            return [Action(stage, work, n) for n in range(schedule.num_microbatches)]
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
        elif action.work in _RECEIVED_FROM:
            source = schedule.rank_of[action.stage + _RECEIVED_FROM[action.work]]
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
