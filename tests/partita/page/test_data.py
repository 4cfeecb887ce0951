"""What the page is given: the simulated step, and memory by category."""

from __future__ import annotations

import json

import numpy as np
import pytest

import partita.page.memory as memory
from partita.compiler.cost.timeline import Category
from partita.compiler.plan.plan import Plan
from partita.compiler.simulate.hidden import one_by_one
from partita.compiler.simulate.timetable import make_timetable
from partita.page.data import page_data, step_data


@pytest.fixture(params=["gpt2_plan", "staged_plan", "plan"])
def any_plan(request: pytest.FixtureRequest) -> Plan:
    """Return a plan of one stage, of two, and the small one."""
    return request.getfixturevalue(request.param)


def test_data_is_json_and_holds_the_whole_plan(any_plan: Plan) -> None:
    data = json.loads(json.dumps(page_data(any_plan), allow_nan=False))
    assert Plan.from_dict(data["plan"]) == any_plan


def test_pins_are_told_as_explain_tells_them(gpt2_plan: Plan) -> None:
    asked = page_data(gpt2_plan)["asked"]
    key = "parameter:transformer.h.0.mlp.c_fc.weight"
    assert asked[key].startswith("pinned to (B, S(1)) by")
    assert asked[key] in gpt2_plan.explain(key)


def test_formulas_are_those_that_explain_prints(any_plan: Plan) -> None:
    formulas = page_data(any_plan)["formulas"]
    shown = [*formulas["calls"].items()]
    assert len(formulas["texts"]) <= len(shown)
    for key, number in (*shown[:5], *shown[-5:]):
        text, stands = formulas["texts"][number]
        lines = [f"  formula    {text}", f"             with {stands}"]
        assert "\n".join(lines) in any_plan.explain(key)
    timed = [k for k, n in any_plan.nodes.items() if n.seconds and n.role is None]
    told = {key for key in timed if "  formula    " in any_plan.explain(key)}
    assert told == set(formulas["calls"])


def test_collectives_have_the_formulas_that_explain_prints(gpt2_plan: Plan) -> None:
    formulas = page_data(gpt2_plan)["formulas"]
    assert formulas["steps"]
    for key, numbers in formulas["steps"].items():
        known = [
            formulas["texts"][number][0] for number in numbers if number is not None
        ]
        assert all(f"  formula    {text}\n" in gpt2_plan.explain(key) for text in known)


def test_actions_and_what_is_done_once_fill_the_step(any_plan: Plan) -> None:
    data = step_data(any_plan)
    step = make_timetable(any_plan).step
    items = data["items"]

    ends = [start + items[number][2] for _, number, start in data["once"]]
    for row, stage, work, _, start in data["actions"]:
        name = f"{stage}{work}"
        length = max((end for _, end in data["times"][name]), default=0.0)
        assert len(data["times"][name]) == len(data["works"][name])
        assert length == pytest.approx(step.stages[stage].seconds[work])
        assert step.schedule.rank_of[stage] == row
        ends.append(start + length)
    assert max(ends) == pytest.approx(data["seconds"]) == pytest.approx(step.seconds)


def test_what_is_sent_on_axes_is_what_the_plan_counts(any_plan: Plan) -> None:
    sent = step_data(any_plan)["sent"]
    counts = {(axis, kind): times for axis, kind, times, *_ in sent}
    assert counts == {(c.axis, c.kind): c.count for c in any_plan.collectives}


def test_what_is_sent_takes_what_the_plan_says(gpt2_plan: Plan) -> None:
    parts = one_by_one(gpt2_plan.predicted).seconds_by_part
    for axis in ("dp", "tp"):
        taken = [s for name, *_, s in step_data(gpt2_plan)["sent"] if name == axis]
        assert sum(taken) == pytest.approx(parts[f"communication {axis}"])


def test_what_is_sent_to_other_stages_has_its_track(staged_plan: Plan) -> None:
    sends = step_data(staged_plan)["sends"]
    assert {(row, to) for row, to, *_ in sends} == {(0, "to row 1"), (1, "to row 0")}
    assert len(sends) == 2 * staged_plan.microbatches


def test_categories_add_up_to_what_is_simulated(
    any_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MOST_SAMPLES", 10**6)
    timetable = make_timetable(any_plan)
    curves = memory.memory_curves(any_plan, timetable.step)
    for curve, samples in zip(curves, timetable.memory, strict=True):
        totals = np.array(curve["bytes"]).sum(axis=0)
        changes = [0, *(np.flatnonzero(np.diff(totals)) + 1)]
        found = [(curve["times"][at], totals[at]) for at in changes]
        assert found == [(sample.time_s, sample.bytes) for sample in samples]


def test_few_samples_keep_the_peak_and_the_ends(
    gpt2_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make_timetable(gpt2_plan).step
    (whole,) = memory.memory_curves(gpt2_plan, step)
    monkeypatch.setattr(memory, "MOST_SAMPLES", 20)
    (few,) = memory.memory_curves(gpt2_plan, step)
    assert len(few["times"]) <= 22 < len(whole["times"])
    assert len(few["bytes"]) == len(Category)
    for end in (0, -1):
        assert few["times"][end] == whole["times"][end]
    most = [np.array(curve["bytes"]).sum(axis=0).max() for curve in (few, whole)]
    assert most[0] == most[1] == gpt2_plan.predicted.bytes
    assert few["times"] == sorted(few["times"])
