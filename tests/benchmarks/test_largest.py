"""A model of 175 billion parameters on 3,072 ranks, laid out as published."""

from __future__ import annotations

import time

import pytest
from benchmarks.fidelity.models import Shape, build

import partita as pt
from partita.compiler.simulate.plan import simulate_step

GPT3 = Shape(96, 12288, 96, 2048, 51200, 4 * 12288)
BATCH, STAGES, COUNT = 1536, 64, 256
LIMIT_S = 120.0


@pytest.mark.slow
def test_the_published_layout_is_planned_and_simulated_in_two_minutes() -> None:
    """64 stages of 6 x 8 ranks, by the time of this process, which has one thread."""
    started = time.process_time()
    model, batch = build(GPT3, BATCH)
    options = pt.Options(
        hardware="a100-80gb-selene",
        optimizer="mixed-adamw",
        microbatches=COUNT,
        schedule="1f1b",
    )
    mesh = f"pp={STAGES},dp=6,tp=8"
    plan = pt.plan(model, mesh=mesh, options=options, **batch)
    step = simulate_step(plan)
    took_s = time.process_time() - started
    print(f"{took_s:.1f} s, step {step.seconds:.3f} s, bubble {step.bubble:.3f}")
    assert took_s < LIMIT_S
    assert plan.mesh.size == 3072
    assert len(plan.stages) == STAGES
    assert [len(row) for row in step.run.compute] == [2 * COUNT] * STAGES
    assert step.seconds == pytest.approx(plan.predicted.seconds, rel=1e-9)
    assert step.bubble > (STAGES - 1) / (COUNT + STAGES - 1) - 1e-9
