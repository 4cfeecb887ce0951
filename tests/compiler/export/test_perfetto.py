from __future__ import annotations

import json
from typing import Any

import pytest

from partita.compiler.export.perfetto import write_perfetto
from partita.compiler.plan.plan import Plan


def nests(slices: list[dict[str, Any]]) -> bool:
    """Whether every slice of a track lies in the last one still open, or behind it."""
    open_until: list[float] = []
    for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
        end = event["ts"] + event["dur"]
        while open_until and open_until[-1] <= event["ts"] + 1e-9:
            open_until.pop()
        if open_until and end > open_until[-1] + 1e-9:
            return False
        open_until.append(end)
    return True


@pytest.mark.parametrize("name", ["small", "staged"])
def test_slices_of_a_track_nest(name: str, request: pytest.FixtureRequest) -> None:
    plan: Plan = request.getfixturevalue(name)
    events = json.loads(write_perfetto(plan))["traceEvents"]
    tracks: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in events:
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    assert tracks
    assert all(nests(slices) for slices in tracks.values())


def test_a_slice_across_anothers_end_does_not_nest() -> None:
    assert not nests([{"ts": 0, "dur": 2}, {"ts": 1, "dur": 2}])


def test_hostile_names_are_text_of_json(hostile: Plan) -> None:
    events = json.loads(write_perfetto(hostile))["traceEvents"]
    assert all("\x1b" not in line for line in write_perfetto(hostile).splitlines())
    assert any("mm" in event["name"] for event in events)
