"""Measure the memory of a step by what the allocator really gave and took.

Torch's profiler records every allocation and release, those of a process group's own
threads too, but nothing of what was there before: that is counted from the tensors.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from partita.runtime.program import ParallelProgram

_DEVICE_TYPES = {"cpu": 0, "cuda": 1}
"""By the numbers of C++: c10/core/DeviceType.h."""


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

    Torch's profiler writes lines to the terminal unless the process was started with
    ``KINETO_LOG_LEVEL=99``.

    Args:
        run: a step, say; what it keeps is held in the end.
        held: the tensors that are there before it and count.
        device: whose memory; ``cpu`` or ``cuda``.
    """
    storages = [x.untyped_storage() for x in held if x.device.type == device.type]
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages}
    held_bytes = sum(sizes.values())
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, profile_memory=True) as recorded:
        kept = run()
    del kept
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return MeasuredMemory(held_bytes, _changes(events, _DEVICE_TYPES[device.type]))


def measure_step(
    program: ParallelProgram,
    optimizer: torch.optim.Optimizer,
    *args: Any,
    **kwargs: Any,
) -> MeasuredMemory:
    """Return how this rank's memory goes over a step of a program and its optimizer.

    All ranks must call it. A first step, in which the optimizer makes its state, does
    not count. Of three that follow it is the one that took least: a backend's own
    threads may let go of what they communicated too late, and then it counts twice.
    """

    def step() -> torch.Tensor:
        loss = program.step(*args, **kwargs)
        optimizer.step()
        return loss

    step()
    measured: list[MeasuredMemory] = []
    for _ in range(3):
        optimizer.zero_grad()
        program.release_copies()  # the profiler does not see old ones go
        states = (
            value for entry in optimizer.state.values() for value in entry.values()
        )
        held = [x for x in states if isinstance(x, torch.Tensor)]
        device = program.groups.device
        measured.append(measure_memory(step, (*program.tensors(), *held), device))
    return min(measured, key=lambda memory: memory.peak_bytes)


def _changes(events: list[Mapping[str, Any]], device: int) -> tuple[Change, ...]:
    """Return the changes on a device in the order in which they were made."""
    memory = [
        event
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == device
    ]
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    ops.sort(key=lambda event: event["ts"])
    memory.sort(key=lambda event: (event["ts"], event["args"]["Ev Idx"]))
    found: list[Change] = []
    name, end, position = "", 0.0, 0
    for event in memory:
        while position < len(ops) and ops[position]["ts"] <= event["ts"]:
            if ops[position]["ts"] >= end:  # not inside of the one before
                name = ops[position]["name"]
                end = ops[position]["ts"] + ops[position]["dur"]
            position += 1
        inside = name if event["ts"] <= end else ""
        found.append(Change(inside, event["args"]["Bytes"]))
    return tuple(found)
