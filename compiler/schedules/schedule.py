"""A pipeline schedule: what each rank does, action by action.

An action is printed as torch.distributed.pipelining prints it: stage, work, microbatch
(``2F0``, ``1SEND_B3``, ``0REDUCE_GRAD``). A backward is whole (``B``), or cut into that
of the inputs (``I``), which the stage before waits for, and that of the weights
(``W``), which nobody does (Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from partita.compiler.errors import BadPlan


class Work(StrEnum):
    """What an action does."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_FORWARD = "SEND_F"  # what the stage made, to the next one
    RECEIVE_FORWARD = "RECV_F"
    SEND_BACKWARD = "SEND_B"  # gradients of what the stage was handed, to the last one
    RECEIVE_BACKWARD = "RECV_B"
    REDUCE = "REDUCE_GRAD"  # of the stage's gradients, after all microbatches
    UPDATE = "UPDATE"

    @property
    def is_compute(self) -> bool:
        """Whether it runs ops of the stage."""
        return self in _PARTS

    @property
    def part(self) -> int:
        """Which part of a stage compute runs: the forward, the backward, its rest."""
        return _PARTS[self]

    @property
    def frees(self) -> bool:
        """Whether what the forward saved of the microbatch is let go of."""
        return self in (Work.BACKWARD, Work.BACKWARD_WEIGHT)


_PARTS = {
    Work.FORWARD: 0,
    Work.BACKWARD: 1,
    Work.BACKWARD_INPUT: 1,
    Work.BACKWARD_WEIGHT: 2,
}
_PRINTED = re.compile(
    rf"(\d+)({'|'.join(sorted(Work, key=len, reverse=True))})(\d*)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Action:
    """Work of a stage on a microbatch; ``None`` where it is on all of them.

    >>> str(Action(2, Work.FORWARD, 0)), Action.parse("1SEND_B3").work
    ('2F0', <Work.SEND_BACKWARD: 'SEND_B'>)
    """

    stage: int
    work: Work
    microbatch: int | None = None

    def __str__(self) -> str:
        number = "" if self.microbatch is None else self.microbatch
        return f"{self.stage}{self.work}{number}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """Read what ``str`` prints.

        Raises:
            BadPlan: for text that is no action.
        """
        match = _PRINTED.fullmatch(text.strip())
        if match is None:
            works = ", ".join(Work)
            raise BadPlan(
                f"schedule: {text!r} is no action; want a stage, one of {works}, and a "
                "microbatch, like 2F0"
            )
        stage, work, microbatch = match.groups()
        return cls(int(stage), Work(work), int(microbatch) if microbatch else None)


@dataclass(frozen=True)
class Schedule:
    """The actions of every rank, in their order.

    Attributes:
        name: of the kind of schedule.
        num_microbatches: into which a batch is cut.
        rank_of: by stage, the rank (of the pipeline) that it is on.
        rows: by rank, its actions.
        most_live: by stage, of how many microbatches it claims to hold what the
            forward saved.
    """

    name: str
    num_microbatches: int
    rank_of: tuple[int, ...]
    rows: tuple[tuple[Action, ...], ...]
    most_live: tuple[int, ...]

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self.rank_of)

    @cached_property
    def cut(self) -> frozenset[int]:
        """The stages whose backward is cut in two."""
        kind = Work.BACKWARD_INPUT
        return frozenset(a.stage for _, a in self.actions() if a.work is kind)

    @cached_property
    def closing(self) -> frozenset[Action]:
        """The last backward of each stage, with which its gradients are whole."""
        last: dict[int, Action] = {}
        for _, action in self.actions():
            if action.work.frees:
                last[action.stage] = action
        return frozenset(last.values())

    def actions(self) -> Iterator[tuple[int, Action]]:
        """Yield every action with its rank, rank by rank."""
        for rank, row in enumerate(self.rows):
            for action in row:
                yield rank, action

    def live(self) -> tuple[int, ...]:
        """Return, by stage, of how many microbatches it ever holds what was saved."""
        now, most = [0] * self.num_stages, [0] * self.num_stages
        for _, action in self.actions():
            if action.work is Work.FORWARD:
                now[action.stage] += 1
                most[action.stage] = max(most[action.stage], now[action.stage])
            elif action.work.frees:
                now[action.stage] -= 1
        return tuple(most)

    def __str__(self) -> str:
        rows = (" ".join(map(str, row)) for row in self.rows)
        return "\n".join(f"rank {rank}: {row}" for rank, row in enumerate(rows))


def needs(schedule: Schedule, action: Action) -> list[Action]:
    """Return the compute, of other stages or its own, that an action waits for."""
    stage, work, number = action.stage, action.work, action.microbatch
    found: list[Action] = []
    if work is Work.FORWARD and stage > 0:
        found.append(Action(stage - 1, Work.FORWARD, number))
    if work in (Work.BACKWARD, Work.BACKWARD_INPUT):
        found.append(Action(stage, Work.FORWARD, number))
        if stage + 1 < schedule.num_stages:
            is_cut = stage + 1 in schedule.cut
            handing_on = Work.BACKWARD_INPUT if is_cut else Work.BACKWARD
            found.append(Action(stage + 1, handing_on, number))
    if work is Work.BACKWARD_WEIGHT:
        found.append(Action(stage, Work.BACKWARD_INPUT, number))
    return found
