"""Measure the memory of a step by what the allocator really gave and took.

Torch's profiler records allocations and releases, those of a process group's own
threads too (allocator_events.py), but nothing of what was there before: that is counted
from the tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from partita.runtime.allocator_events import Event, record_events, with_releases
from partita.runtime.program import ParallelProgram

_STEPS = 5


@dataclass(frozen=True, slots=True)
class Change:
    """One allocation (or release, of negative bytes) and the op in which it was."""

    op: str
    num_bytes: int


@dataclass(frozen=True)
class MeasuredMemory:
    """What was held at the start, and every change from then on, in order.

    >>> changes = Change("aten::mm", 8), Change("aten::mm", -8), Change("", 4)
    >>> found = MeasuredMemory(16, changes)
    >>> found.bytes_at, found.peak_bytes, found.peak_op
    ((24, 16, 20), 24, 'aten::mm')
    """

    held_bytes: int
    changes: tuple[Change, ...]

    @cached_property
    def bytes_at(self) -> tuple[int, ...]:
        """The bytes that are held after each change."""
        sizes = (change.num_bytes for change in self.changes)
        return tuple(accumulate(sizes, initial=self.held_bytes))[1:]

    @property
    def peak_bytes(self) -> int:
        """The most bytes that were held."""
        return max((self.held_bytes, *self.bytes_at))

    @property
    def peak_op(self) -> str:
        """The outermost op that held the most."""
        return self.changes[self.bytes_at.index(self.peak_bytes)].op


def measure_memory(
    run: Callable[[], object], held: Iterable[torch.Tensor], device: torch.device
) -> MeasuredMemory:
    """Return how memory goes while ``run`` runs.

    Args:
        run: a step, say; what it keeps is held in the end.
        held: the tensors that are there before it and count.
        device: whose memory; ``cpu`` or ``cuda``.
    """
    held_bytes = _bytes_of(held, device)
    (events,) = with_releases([record_events(run, device)])
    return _measured(held_bytes, events)


def measure_step(
    program: ParallelProgram,
    optimizer: torch.optim.Optimizer,
    *args: Any,
    **kwargs: Any,
) -> MeasuredMemory:
    """Return how this rank's memory goes over a step of a program and its optimizer.

    All ranks must call it. A first step, in which the optimizer makes its state, does
    not count. Of some that follow it is the one that took least: a backend's threads
    may hold what they communicate for longer in one than in another.
    """

    def step() -> torch.Tensor:
        loss = program.step(*args, **kwargs)
        optimizer.step()
        return loss

    step()
    device = program.groups.device
    held_bytes: list[int] = []
    steps: list[Sequence[Event]] = []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        program.release_copies()  # the profiler does not see old ones go
        states = (
            value for entry in optimizer.state.values() for value in entry.values()
        )
        held = [x for x in states if isinstance(x, torch.Tensor)]
        held_bytes.append(_bytes_of((*program.tensors(), *held), device))
        steps.append(record_events(step, device))
    measured = map(_measured, held_bytes, with_releases(steps))
    return min(measured, key=lambda memory: memory.peak_bytes)


def _bytes_of(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    """Return the memory that tensors lie in, what they share counted once."""
    storages = [x.untyped_storage() for x in tensors if x.device.type == device.type]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _measured(held_bytes: int, events: Iterable[Event]) -> MeasuredMemory:
    changes = tuple(Change(event.op, event.num_bytes) for event in events)
    return MeasuredMemory(held_bytes, changes)
