"""What an allocator gave and took over a step, by the events of torch's profiler.

The profiler is told of a release only in threads that it follows. A backend's own
thread still holds what was communicated for a moment after the run went on; where it
is the last one to let go, nobody tells (torch 2.13, ProcessGroupGloo.cpp: ``runLoop``
drops a work outside of the guard under which ``execute`` ran it). Which thread is last
is chance. What the run's thread allocates is not: another step tells where the release
belongs. And memory that is given out anew has been released before, told or not.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_DEVICE_TYPES = {"cpu": 0, "cuda": 1}
"""By the numbers of C++: c10/core/DeviceType.h."""


@dataclass(frozen=True, slots=True)
class Event:
    """An allocation (or release, of negative bytes) at an address.

    ``op`` is the outermost one that ran, ``is_own`` whether in the run's own thread.
    """

    op: str
    num_bytes: int
    address: int
    is_own: bool = True


def record_events(run: Callable[[], object], device: torch.device) -> list[Event]:
    """Return what happened on a device while ``run`` ran, in order.

    Torch's profiler writes lines to the terminal unless the process was started with
    ``KINETO_LOG_LEVEL=99``.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    # Events of one cycle; without acc_events torch 2.11 warns that there is no other.
    with profile(
        activities=activities, profile_memory=True, acc_events=True
    ) as recorded:
        kept = run()
    del kept
    with tempfile.TemporaryDirectory(prefix="partita-") as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    return list(_read(events, _DEVICE_TYPES[device.type], threading.get_native_id()))


def _read(
    events: Sequence[Mapping[str, Any]], device: int, thread: int
) -> Iterator[Event]:
    """Yield the changes on a device in the order in which they were made."""
    memory = [
        event
        for event in events
        if event.get("name") == "[memory]" and event["args"]["Device Type"] == device
    ]
    ops = [event for event in events if event.get("cat") == "cpu_op"]
    ops.sort(key=lambda event: event["ts"])
    memory.sort(key=lambda event: (event["ts"], event["args"]["Ev Idx"]))
    name, end, position = "", 0.0, 0
    for event in memory:
        while position < len(ops) and ops[position]["ts"] <= event["ts"]:
            if ops[position]["ts"] >= end:  # not inside of the one before
                name = ops[position]["name"]
                end = ops[position]["ts"] + ops[position]["dur"]
            position += 1
        inside, args = name if event["ts"] <= end else "", event["args"]
        yield Event(inside, args["Bytes"], args["Addr"], event["tid"] == thread)


def with_releases(steps: Sequence[Sequence[Event]]) -> list[list[Event]]:
    """Return the events of equal steps with the releases that nobody told of.

    >>> told = [Event("mm", 8, 1), Event("mm", -8, 1), Event("add", 4, 2)]
    >>> untold = [Event("mm", 8, 3), Event("add", 4, 4)]
    >>> [event.num_bytes for event in with_releases([told, untold])[1]]
    [8, -8, 4]
    """
    told: dict[tuple[int, int], int] = {}
    for events in steps:
        for number, (event, end) in enumerate(_own(events)):
            if end is not None:
                which = number, event.num_bytes
                told[which] = min(end, told.get(which, end))
    return [list(_complete(events, told)) for events in steps]


def _own(events: Sequence[Event]) -> list[tuple[Event, int | None]]:
    """Return what the run's thread allocates, each with when its release is told.

    That is told by how much it had allocated until then.
    """
    found: list[tuple[Event, int | None]] = []
    held: dict[int, int] = {}
    for event in events:
        if event.num_bytes < 0:
            number = held.pop(event.address, None)
            if number is not None:
                found[number] = found[number][0], len(found)
            continue
        held.pop(event.address, None)
        if event.is_own:
            held[event.address] = len(found)
            found.append((event, None))
    return found


def _complete(
    events: Sequence[Event], told: Mapping[tuple[int, int], int]
) -> Iterator[Event]:
    """Yield a step's events and, where they belong, the releases that it lacks.

    A release belongs in front of the first allocation that was behind it in the step
    that told it, as late as it may have been.
    """
    due: dict[int, list[Event]] = {}
    for number, (event, end) in enumerate(_own(events)):
        known = told.get((number, event.num_bytes))
        if end is None and known is not None:
            due.setdefault(known, []).append(event)
    held: dict[int, Event] = {}
    count = 0
    for event in events:
        if event.num_bytes < 0:
            held.pop(event.address, None)
            yield event
            continue
        if event.is_own:
            for lost in due.get(count, ()):
                if held.pop(lost.address, None) is not None:
                    yield _released(lost)
            count += 1
        lost = held.pop(event.address, None)
        if lost is not None:
            yield _released(lost)
        held[event.address] = event
        yield event


def _released(event: Event) -> Event:
    return Event("", -event.num_bytes, event.address)
