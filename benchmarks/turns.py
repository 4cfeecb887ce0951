"""Groups of ranks that take turns: each in processes of its own, one group at a time.

So whatever else the machine does slows all of them alike, and what one does to its
process, its memory say, is no other's. Who has no turn waits idle.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from partita.runtime.launch import launch
from partita.runtime.stores import joined_store, meeting_store
from partita.runtime.target import Target, as_importable, find_target

Step = Callable[[], torch.Tensor]
"""A step of training; returns the loss of this rank's share."""

Make = Callable[..., Step]
"""What makes a rank's step from arguments that can be pickled."""

_LONGEST = timedelta(hours=1)  # that others have their turns, or compile


@dataclass(frozen=True)
class Ended:
    """What a rank tells of its process: seconds of the first step, bytes, losses."""

    first_s: float
    peak_bytes: int
    first_loss: float
    loss: float


@dataclass(frozen=True)
class Turn:
    """A step of a turn: seconds of the slowest rank, bytes on the loopback device."""

    seconds: float
    sent_bytes: float


@dataclass(frozen=True)
class Group:
    """The processes of one group; ``ended`` is what each tells in the end."""

    name: str
    num: int
    ended: Future[list[Ended]]


class Turns:
    """Who steps when: a store that all processes of all groups read.

    As a context it ends all groups.
    """

    def __init__(self, most_groups: int) -> None:
        self._store = meeting_store()
        self._pool = ThreadPoolExecutor(most_groups)
        self._taken: dict[str, int] = {}
        self._groups: list[Group] = []

    def __enter__(self) -> Turns:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for group in self._groups:
            self._store.set(self._next(group), "0")
        self._pool.shutdown()

    def start(self, name: str, num: int, make: Make, *args: Any) -> Group:
        """Return a group once its first step is done."""
        served = as_importable(make), args, name, self._store.port
        group = Group(name, num, self._pool.submit(launch, serve, num, served))
        self._wait(group, [f"{name}/ready/{rank}" for rank in range(num)])
        self._groups.append(group)
        return group

    def take(self, group: Group, steps: int) -> Turn:
        """Let a group do some steps; return the median one."""
        turn = self._next(group)
        before = _loopback_bytes()
        self._store.set(turn, str(steps))
        keys = [f"{turn}/{rank}" for rank in range(group.num)]
        self._wait(group, keys)
        sent = (_loopback_bytes() - before) / steps
        return Turn(max(float(self._store.get(key)) for key in keys), sent)

    def _next(self, group: Group) -> str:
        number = self._taken.get(group.name, 0)
        self._taken[group.name] = number + 1
        return f"{group.name}/{number}"

    def _wait(self, group: Group, keys: Iterable[str]) -> None:
        wanted = list(keys)
        while not self._store.check(wanted):
            if group.ended.done():
                group.ended.result()  # raises what ended it
            time.sleep(0.02)


def serve(make: Target, args: tuple[Any, ...], name: str, port: int) -> Ended:
    """Make a step on this rank, then take the group's turns until there are no more."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    turns = joined_store(port)
    started = time.perf_counter()
    step = find_target(make)(*args)
    loss = first = step()
    first_s = time.perf_counter() - started
    turns.set(f"{name}/ready/{rank}", "")
    for number in count():
        turn = f"{name}/{number}"
        turns.wait([turn], _LONGEST)
        steps = int(turns.get(turn))
        if not steps:
            break
        spent: list[float] = []
        for _ in range(steps):
            dist.barrier()
            started = time.perf_counter()
            loss = step()
            spent.append(time.perf_counter() - started)
        turns.set(f"{turn}/{rank}", str(median(spent)))
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return Ended(first_s, peak_bytes, float(first), float(loss))


def _loopback_bytes() -> int:
    """Return what was sent on this machine's loopback device since it started."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    own = next(line for line in lines if line.strip().startswith("lo:"))
    return int(own.partition(":")[2].split()[0])
