"""Simulated plans: their time is what they predict, of one stage and of several."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stage_records import TransferKind
from partita.compiler.plan.stages import write_schedule
from partita.compiler.schedules.make import make_schedule
from partita.compiler.schedules.transfers import with_transfers
from partita.compiler.simulate.plan import seconds_by_part, simulate_step


def test_a_step_takes_what_the_plan_predicts(plan: Plan) -> None:
    step = simulate_step(plan)
    assert step.seconds == pytest.approx(plan.predicted.seconds, rel=1e-9)


def test_one_stage_waits_for_nobody(one_stage: Plan) -> None:
    step = simulate_step(one_stage)
    assert step.bubble == pytest.approx(0, abs=1e-9)
    assert [len(row) for row in step.run.compute] == [2 * one_stage.microbatches]


def test_busy_and_bubble_make_the_step(stages: Plan) -> None:
    step = simulate_step(stages)
    whole = step.seconds * len(step.busy_s)
    assert sum(step.busy_s) == pytest.approx(whole * (1 - step.bubble))
    assert 0 < step.bubble < 1


def test_parts_add_up_to_the_step(plan: Plan) -> None:
    step = simulate_step(plan)
    parts = seconds_by_part(plan, step)
    assert sum(parts.values()) == pytest.approx(step.seconds)
    assert min(parts.values()) >= -1e-12


def test_a_row_begins_when_its_state_is_there(interleaved: Plan) -> None:
    step = simulate_step(interleaved)
    states = [t for t in interleaved.transfers if t.kind is TransferKind.STATE]
    (shared,) = (t for t in states if t.bytes)  # to another row
    row = step.schedule.rank_of[shared.receiver]
    assert any(once.sender == shared.sender for once in step.before[row])
    slower = replace(
        interleaved,
        transfers=tuple(
            replace(t, seconds=t.seconds + 1.0) if t is shared else t
            for t in interleaved.transfers
        ),
    )
    assert simulate_step(slower).begins[row] == pytest.approx(step.begins[row] + 1)
    assert simulate_step(slower).run.compute[row][0].start_s > 1


def test_gradients_come_home_before_the_update(interleaved: Plan) -> None:
    step = simulate_step(interleaved)
    (home,) = (t for t in interleaved.transfers if t.kind is TransferKind.GRADIENT)
    names = [
        once.item.name for once in step.after[step.schedule.rank_of[home.receiver]]
    ]
    handed = names.index(f"gradient {home.name} from stage {home.sender}")
    assert handed < names.index(f"update {home.name}")


def test_other_schedules_run_the_same_actions_at_other_times(pipeline: Plan) -> None:
    made = with_transfers(make_schedule("gpipe", 2, 4))
    other = replace(pipeline, schedule=write_schedule(made))
    step, own = simulate_step(other), simulate_step(pipeline)
    assert step.busy_s == pytest.approx(own.busy_s)
    assert step.run.compute != own.run.compute
