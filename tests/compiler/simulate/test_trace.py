"""Traces: valid by the format, and with the timetable's own times."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from partita.compiler.plan.plan import Plan
from partita.compiler.simulate.timetable import make_timetable
from partita.compiler.simulate.trace import write_trace

Event = dict[str, Any]


def trace_of(plan: Plan) -> list[Event]:
    """Return the events of a trace that went through a file."""
    text = json.dumps(write_trace(plan, make_timetable(plan)), allow_nan=False)
    return json.loads(text)["traceEvents"]


def of(events: list[Event], phase: str) -> list[Event]:
    return [event for event in events if event["ph"] == phase]


def ns(microseconds: float) -> int:
    return round(1000 * microseconds)


def test_slices_nest_on_every_track(plan: Plan) -> None:
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in of(trace_of(plan), "X"):
        start, seconds = ns(event["ts"]), ns(event["dur"])
        assert start >= 0
        assert seconds >= 0
        tracks[event["pid"], event["tid"]].append((start, start + seconds))
    for slices in tracks.values():
        under: list[int] = []
        for start, end in sorted(slices, key=lambda pair: (pair[0], -pair[1])):
            while under and under[-1] <= start:
                under.pop()
            assert not under or end <= under[-1]
            under.append(end)


def test_every_track_has_a_name(plan: Plan) -> None:
    events = trace_of(plan)
    named = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in of(events, "M")
        if event["name"] == "thread_name"
    }
    used = {(event["pid"], event["tid"]) for event in of(events, "X")}
    assert used == set(named)
    tids = [tid for _, tid in named]
    assert len(tids) == len(set(tids))
    rows = {e["pid"] for e in of(events, "M") if e["name"] == "process_name"}
    assert rows == {pid for pid, _ in used}


def test_flows_start_in_a_send_and_end_in_an_action(stages: Plan) -> None:
    events = trace_of(stages)
    starts = {event["id"]: event for event in of(events, "s")}
    ends = {event["id"]: event for event in of(events, "f")}
    assert starts
    assert set(starts) == set(ends)
    assert len(starts) == len(of(events, "s")) == len(of(events, "f"))
    slices = {
        (event["pid"], event["tid"], ns(event["ts"]), event["cat"])
        for event in of(events, "X")
    }
    for number, start in starts.items():
        end = ends[number]
        assert end["bp"] == "e"
        assert (start["name"], start["cat"]) == (end["name"], end["cat"])
        assert ns(start["ts"]) <= ns(end["ts"])
        assert (end["pid"], end["tid"], ns(end["ts"]), "action") in slices
        where = start["pid"], start["tid"], ns(start["ts"])
        assert (*where, f"to row {end['pid']}") in slices


def test_one_stage_has_no_flows(whole: Plan) -> None:
    assert {event["ph"] for event in trace_of(whole)} == {"M", "X", "C"}


def test_microseconds_are_the_predicted_ones(one_stage: Plan) -> None:
    items = [e for e in of(trace_of(one_stage), "X") if e["cat"] != "action"]
    # each is cut to a nanosecond
    total = sum(event["dur"] for event in items) / 1e6
    wanted = one_stage.predicted.seconds
    assert total == pytest.approx(wanted, abs=1e-9 * len(items))
    end = max(event["ts"] + event["dur"] for event in items) / 1e6
    assert end == pytest.approx(wanted, abs=2e-9)


def test_a_step_of_one_stage_shows_its_nodes_and_boxings_in_order(parts: Plan) -> None:
    slices = [e for e in of(trace_of(parts), "X") if e["cat"] != "action"]
    names = [e["name"] for e in sorted(slices, key=lambda event: event["ts"])]
    timed = {k for k, n in parts.nodes.items() if n.seconds and n.role is None}
    keys = [key for key in parts.order if key in timed]
    assert [name for name in names if name in timed] == 4 * keys
    together = {key for keys in parts.buckets for key in keys}
    alone = [b for b in parts.boxings if b.key not in together]
    collectives = {f"{b.lowering[0]}: {b.key}" for b in alone}
    assert any(" more" in name for name in names)
    assert collectives <= set(names)


def test_memory_counters_are_those_of_the_timetable(pipeline: Plan) -> None:
    table = make_timetable(pipeline)
    counters = [e for e in of(trace_of(pipeline), "C") if e["name"] == "memory"]
    for row, samples in enumerate(table.memory):
        own = [event["args"]["bytes"] for event in counters if event["pid"] == row]
        assert own == [sample.bytes for sample in samples]


def test_rates_return_to_zero_and_make_the_bytes(pipeline: Plan) -> None:
    rates = [e for e in of(trace_of(pipeline), "C") if e["name"] != "memory"]
    sent: dict[tuple[int, str], float] = defaultdict(float)
    for begin, end in zip(rates[::2], rates[1::2], strict=True):
        assert end["args"]["rate"] == 0
        seconds = (end["ts"] - begin["ts"]) / 1e6
        sent[begin["pid"], begin["name"]] += seconds * begin["args"]["rate"]
    for link in make_timetable(pipeline).links:
        name = f"{link.track}, bytes a second"
        assert sent[link.row, name] == pytest.approx(link.bytes, rel=1e-3)
