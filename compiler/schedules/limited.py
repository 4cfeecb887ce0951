"""Forwards and backwards of a chain of stages that may hold few microbatches each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from partita.compiler.schedules.schedule import Action, Work

_TAKES = {Work.BACKWARD: 2, Work.FORWARD: 1}
"""Units of time; the first is what a rank does if it could do both."""


@dataclass
class _Stage:
    """What a stage has done, and when each was there; ``free_at`` it does the next."""

    row: list[Action] = field(default_factory=list[Action])
    ends: dict[Action, int] = field(default_factory=dict[Action, int])
    done: dict[Work, int] = field(default_factory=lambda: dict.fromkeys(_TAKES, 0))
    free_at: int = 0


def limited_rows(
    most_live: Sequence[int], num_microbatches: int
) -> tuple[tuple[Action, ...], ...]:
    """Return what stages do that take a backward, or else a forward, whenever idle.

    Args:
        most_live: by stage, how many microbatches it may hold, at least one.
        num_microbatches: how many there are.

    >>> rows = limited_rows((1, 1), 2)
    >>> [" ".join(map(str, row)) for row in rows]
    ['0F0 0B0 0F1 0B1', '1F0 1B0 1F1 1B1']
    """
    stages = [_Stage() for _ in most_live]
    woken = {0: {0}}  # by time the stages at which, or beside which, an action ends
    while woken:
        now = min(woken)
        for number in sorted(woken.pop(now)):
            stage = stages[number]
            for work, takes in _TAKES.items():
                action = Action(number, work, stage.done[work])
                if stage.free_at > now or stage.done[work] == num_microbatches:
                    continue
                held = stage.done[Work.FORWARD] - stage.done[Work.BACKWARD]
                if work is Work.FORWARD and held >= most_live[number]:
                    continue
                if _is_there(action, stages, now):
                    stage.done[work] += 1
                    stage.free_at = stage.ends[action] = now + takes
                    stage.row.append(action)
                    beside = range(max(number - 1, 0), min(number + 2, len(stages)))
                    woken.setdefault(stage.free_at, set()).update(beside)
    return tuple(tuple(stage.row) for stage in stages)


def _is_there(action: Action, stages: Sequence[_Stage], now: int) -> bool:
    """Whether what an action needs has been made."""
    number, microbatch = action.stage, action.microbatch
    if action.work is Work.FORWARD:
        wanted = [Action(number - 1, Work.FORWARD, microbatch)] if number else []
    else:
        wanted = [Action(number, Work.FORWARD, microbatch)]
        if number + 1 < len(stages):
            wanted.append(Action(number + 1, Work.BACKWARD, microbatch))
    return all(stages[w.stage].ends.get(w, now + 1) <= now for w in wanted)
