"""When each action of a schedule runs, if ranks do them in order as soon as they can.

Compute waits for what it needs of other stages: until it was made, and, from another
rank, has come over the link, which carries one thing after another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.compiler.schedules.check import check_possible
from partita.compiler.schedules.schedule import Action, Schedule, Work, needs
from partita.compiler.schedules.transfers import compute_alone


@dataclass(frozen=True, slots=True)
class Event:
    """An action of a rank, from when to when; ``to`` is whom a transfer is for."""

    rank: int
    action: Action
    start_s: float
    end_s: float
    to: int | None = None

    @property
    def seconds(self) -> float:
        """How long it takes."""
        return self.end_s - self.start_s


@dataclass(frozen=True)
class Run:
    """A step of a pipeline: compute by rank, in order, and transfers.

    Ranks without any begin, and end, when ``begins`` says.
    """

    compute: tuple[tuple[Event, ...], ...]
    transfers: tuple[Event, ...]
    begins: tuple[float, ...]

    def end_of(self, rank: int) -> float:
        """Return when a rank has done its last action."""
        row = self.compute[rank]
        return row[-1].end_s if row else self.begins[rank]

    @cached_property
    def seconds(self) -> float:
        """From the first action to the end of the last."""
        return max((event.end_s for row in self.compute for event in row), default=0.0)

    @property
    def busy_s(self) -> tuple[float, ...]:
        """How long each rank computes."""
        return tuple(sum(event.seconds for event in row) for row in self.compute)

    @property
    def bubble(self) -> float:
        """The part of the ranks' time that they do not compute."""
        return 1 - sum(self.busy_s) / (len(self.compute) * self.seconds)


def simulate_pipeline(
    schedule: Schedule,
    seconds: Callable[[Action], float],
    hop_seconds: Callable[[int, int], float],
    begins: Sequence[float] | None = None,
) -> Run:
    """Return when the compute of a schedule runs.

    Args:
        schedule: any; of its actions the compute counts.
        seconds: what compute takes.
        hop_seconds: what the transfer from one stage to another takes.
        begins: when each rank can begin; at once unless said.

    Raises:
        BadPlan: for a schedule that waits for ever.
    """
    check_possible(compute_alone(schedule))
    begins = begins or [0.0] * len(schedule.rows)
    return _Simulation(compute_alone(schedule), seconds, hop_seconds, begins).run()


class _Simulation:
    def __init__(
        self,
        schedule: Schedule,
        seconds: Callable[[Action], float],
        hop_seconds: Callable[[int, int], float],
        begins: Sequence[float],
    ) -> None:
        self.schedule = schedule
        self.seconds = seconds
        self.hop_seconds = hop_seconds
        self.begins = begins
        self.ends: dict[Action, float] = {}
        self.arrivals: dict[tuple[Action, int], float] = {}
        self.link_free: dict[tuple[int, int], float] = {}
        self.transfers: list[Event] = []

    def run(self) -> Run:
        rows: list[list[Event]] = [[] for _ in self.schedule.rows]
        waiting: dict[Action, list[int]] = {}
        ready = list(range(len(rows)))
        while ready:
            rank = ready.pop()
            row = self.schedule.rows[rank]
            while len(rows[rank]) < len(row):
                action = row[len(rows[rank])]
                wanted = needs(self.schedule, action)
                lacking = [other for other in wanted if other not in self.ends]
                if lacking:
                    waiting.setdefault(lacking[0], []).append(rank)
                    break
                last = rows[rank][-1].end_s if rows[rank] else self.begins[rank]
                start = max([last, *(self._there(o, action.stage) for o in wanted)])
                end = start + self.seconds(action)
                rows[rank].append(Event(rank, action, start, end))
                self.ends[action] = end
                self._send(action, end)
                ready += waiting.pop(action, [])
        return Run(tuple(map(tuple, rows)), tuple(self.transfers), tuple(self.begins))

    def _there(self, made: Action, stage: int) -> float:
        """Return when what an action made is where another stage's rank has it."""
        return self.arrivals.get((made, stage), self.ends[made])

    def _send(self, action: Action, ready: float) -> None:
        to = _next_stage(action)
        if to is None or not 0 <= to < self.schedule.num_stages:
            return
        way = self.schedule.rank_of[action.stage], self.schedule.rank_of[to]
        if way[0] == way[1]:
            return
        start = max(ready, self.link_free.get(way, 0.0))
        end = start + self.hop_seconds(action.stage, to)
        self.link_free[way] = self.arrivals[action, to] = end
        self.transfers.append(Event(way[0], action, start, end, way[1]))


def _next_stage(action: Action) -> int | None:
    """Return the stage that waits for what an action makes."""
    if action.work is Work.FORWARD:
        return action.stage + 1
    if action.work in (Work.BACKWARD, Work.BACKWARD_INPUT):
        return action.stage - 1
    return None
