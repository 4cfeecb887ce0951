"""What passes beside computing is in no plan's seconds, and all figures agree on it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import pytest
from tests.compiler.search.hand_made import machine
from tests.models import zoo
from tests.models.captured import captured
from tests.models.searched import searched

import partita as pt
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.table import print_tables
from partita.compiler.schedules.schedule import Work
from partita.compiler.search.fusion import with_groups
from partita.compiler.simulate.hidden import one_by_one, with_hidden
from partita.compiler.simulate.plan import simulate_step
from partita.compiler.simulate.stage_items import stage_items
from partita.compiler.simulate.timetable import make_timetable
from partita.one_mesh.planner import Planner
from partita.whole_plans.recount import recount, with_figures

PART = "communication dp"
MACHINE = partial(machine, alpha_s=3e-6, bytes_per_s=2e8)


@cache
def plan_on(overlap: float, microbatches: int = 1, bucket: str = "") -> Plan:
    """Return data parallel GPT-2 on a machine that computes beside messages."""
    built, known = captured("gpt2")
    options = pt.Options(
        pins=zoo.data_parallel_pins(built, 1),
        hardware=MACHINE(overlap=overlap),
        microbatches=microbatches,
        fuse=True,
    )
    if microbatches == 1 and not bucket:
        return searched(Planner(known, "gpt2", pt.Mesh(dp=2), options))
    model, args, kwargs = built
    options = replace(options, bucket=bucket or "1KiB")
    return pt.plan(model, *args, mesh="dp=2", options=options, **kwargs)


def test_a_step_takes_less_by_what_is_hidden() -> None:
    apart, found = plan_on(0.0), plan_on(0.8)
    assert not apart.predicted.hidden_by_part
    hidden_s = found.predicted.hidden_by_part[PART]
    sums_s = apart.predicted.seconds_by_part[PART]
    assert 0.1 * sums_s < hidden_s < 0.8 * sums_s
    assert found.predicted.seconds == pytest.approx(apart.predicted.seconds - hidden_s)
    parts = found.predicted.seconds_by_part
    assert sum(parts.values()) == pytest.approx(found.predicted.seconds)
    assert parts[PART] == pytest.approx(sums_s - hidden_s)


@pytest.mark.parametrize("bucket", ["", "16KiB"])
def test_all_figures_agree(bucket: str) -> None:
    plan = plan_on(0.8, bucket=bucket)
    assert bool(plan.buckets) is bool(bucket)
    assert plan.predicted.hidden_by_part[PART] > 0
    assert simulate_step(plan).seconds == pytest.approx(plan.predicted.seconds)
    again = with_figures(plan).predicted
    assert again.seconds == pytest.approx(plan.predicted.seconds)
    assert again.hidden_by_part == pytest.approx(plan.predicted.hidden_by_part)
    assert not recount(plan).is_edited
    assert Plan.from_dict(plan.to_dict()) == plan


def test_figures_one_by_one_come_back() -> None:
    plan = plan_on(0.8)
    apart = one_by_one(plan.predicted)
    assert apart.seconds == pytest.approx(sum(apart.seconds_by_part.values()))
    found = with_hidden(apart, plan)
    assert found.seconds == pytest.approx(plan.predicted.seconds)


def test_a_fused_group_leaves_less_to_compute_beside() -> None:
    plan = plan_on(0.8)
    assert plan.fusion
    bare = with_figures(replace(plan, fusion=()))
    fused = with_groups(bare, ())
    assert fused.predicted.seconds == pytest.approx(bare.predicted.seconds)
    assert plan.predicted.seconds < bare.predicted.seconds


def test_messages_stand_beside_what_is_computed() -> None:
    timetable = make_timetable(plan_on(0.8))
    beside = [s for s in timetable.spans if s.is_beside]
    assert beside
    assert all(s.track == "axis dp" and not s.is_send for s in beside)
    computing = [s for s in timetable.spans if s.track == "compute" and not s.is_whole]
    meanwhile = [
        c
        for s in beside
        for c in computing
        if s.start_s < c.end_s and c.start_s < s.end_s
    ]
    assert len(meanwhile) > 10
    assert max(s.end_s for s in timetable.spans) == pytest.approx(
        timetable.step.seconds
    )
    for one, two in pairwise(computing):
        assert one.end_s <= two.start_s * (1 + 1e-12)


def test_gradients_that_add_up_are_summed_behind_it_all() -> None:
    plan = plan_on(0.8, microbatches=2)
    assert plan.microbatches == 2
    assert not plan.predicted.hidden_by_part
    items = stage_items(plan).by_work[Work.BACKWARD]
    assert not any(item.is_beside for item in items)


def test_a_plan_says_what_is_hidden() -> None:
    plan = plan_on(0.8)
    assert f"more of {PART} pass while ranks compute" in print_tables(plan)
    assert "while ranks compute" not in print_tables(plan_on(0.0))
    late = next(b for b in plan.boxings if b.consumers[0].startswith("gradient:"))
    said = "nothing waits for it: in a second of it ranks compute for 0.8 s of others"
    assert said in plan.explain(late.key)
    assert "nothing waits" not in plan_on(0.0).explain(late.key)
