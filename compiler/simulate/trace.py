"""A timetable in the Trace Event Format, which Perfetto and Chrome open.

Google, "Trace Event Format", to which perfetto.dev/docs/getting-started/other-formats
leads.
Rows are processes, tracks their threads. Times are microseconds, cut to nanoseconds,
so that what ends where another thing begins does not overlap it by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from partita.compiler.plan.document import Document
from partita.compiler.simulate.timetable import COMPUTE, Span, Timetable

Event = dict[str, Any]


def write_trace(document: Document, timetable: Timetable) -> dict[str, Any]:
    """Return the trace of a plan's step as JSON values."""
    tracks = _tracks(timetable)
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [
            *_names(document, timetable, tracks),
            *(_slice(span, tracks) for span in timetable.spans),
            *_flows(timetable, tracks),
            *_memory(timetable),
            *_rates(timetable),
        ],
    }


def _tracks(timetable: Timetable) -> dict[tuple[int, str], int]:
    """Return the number of each track of each row; compute comes first."""
    named = {(span.row, span.track) for span in timetable.spans}
    ordered = sorted(named, key=lambda track: (track[0], track[1] != COMPUTE, track[1]))
    return {track: number for number, track in enumerate(ordered, 1)}


def _names(
    document: Document, timetable: Timetable, tracks: dict[tuple[int, str], int]
) -> Iterator[Event]:
    rank_of = timetable.step.schedule.rank_of
    for row in range(len(timetable.memory)):
        own = [number for number, at in enumerate(rank_of) if at == row]
        ranks = document.stages[own[0]].ranks
        name = f"row {row}: ranks {min(ranks)}-{max(ranks)}, stages {own}"
        yield _meta("process_name", row, 0, name=name)
        yield _meta("process_sort_index", row, 0, sort_index=row)
    for (row, track), number in tracks.items():
        yield _meta("thread_name", row, number, name=track)
        yield _meta("thread_sort_index", row, number, sort_index=number)


def _meta(kind: str, row: int, track: int, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": row, "tid": track, "args": args}


def _slice(span: Span, tracks: dict[tuple[int, str], int]) -> Event:
    start, end = _ns(span.start_s), _ns(span.end_s)
    found: Event = {
        "ph": "X",
        "name": span.name,
        "cat": "action" if span.is_whole else span.track,
        "pid": span.row,
        "tid": tracks[span.row, span.track],
        "ts": start / 1000,
        "dur": (end - start) / 1000,
    }
    if span.bytes:
        found["args"] = {"bytes": round(span.bytes)}
    return found


def _flows(timetable: Timetable, tracks: dict[tuple[int, str], int]) -> Iterator[Event]:
    """Yield where each arrow starts, at its send, and ends, at the action's start."""
    for number, (send, used) in enumerate(timetable.arrows):
        for phase, span in (("s", send), ("f", used)):
            yield {
                "ph": phase,
                "id": number,
                "name": send.name,
                "cat": "transfer",
                "bp": "e",
                "pid": span.row,
                "tid": tracks[span.row, span.track],
                "ts": _ns(span.start_s) / 1000,
            }


def _memory(timetable: Timetable) -> Iterator[Event]:
    for row, samples in enumerate(timetable.memory):
        for sample in samples:
            yield _counter(row, "memory", sample.time_s, bytes=sample.bytes)


def _rates(timetable: Timetable) -> Iterator[Event]:
    """Yield how many bytes a second a rank sends on each track."""
    for span in timetable.spans:
        if span.bytes and span.seconds:
            name, rate = f"{span.track}, bytes a second", span.bytes / span.seconds
            yield _counter(span.row, name, span.start_s, rate=rate)
            yield _counter(span.row, name, span.end_s, rate=0)


def _counter(row: int, name: str, time_s: float, **args: float) -> Event:
    ts = _ns(time_s) / 1000
    return {"ph": "C", "name": name, "pid": row, "ts": ts, "args": args}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
