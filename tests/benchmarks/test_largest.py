"""A model of 175 billion parameters on 3,072 ranks, as published and freely."""

from __future__ import annotations

import time

import pytest
from benchmarks.fidelity.models import Shape, build

import partita as pt
from partita.compiler.simulate.plan import simulate_step

GPT3 = Shape(96, 12288, 96, 2048, 51200, 4 * 12288)
BATCH, STAGES, COUNT, RANKS = 1536, 64, 256, 3072
LIMIT_S = 120.0
HARDWARE, OPTIMIZER = "a100-80gb-selene", "mixed-adamw"


def published() -> pt.Plan:
    """Plan 64 stages of 6 x 8 ranks."""
    model, batch = build(GPT3, BATCH)
    options = pt.Options(
        hardware=HARDWARE, optimizer=OPTIMIZER, microbatches=COUNT, schedule="1f1b"
    )
    mesh = f"pp={STAGES},dp=6,tp=8"
    return pt.plan(model, mesh=mesh, options=options, **batch)


@pytest.mark.slow
def test_the_published_layout_is_planned_and_simulated_in_two_minutes() -> None:
    """By the time of this process, which has one thread."""
    started = time.process_time()
    plan = published()
    step = simulate_step(plan)
    took_s = time.process_time() - started
    print(f"{took_s:.1f} s, step {step.seconds:.3f} s, bubble {step.bubble:.3f}")
    assert took_s < LIMIT_S
    assert plan.mesh.size == RANKS
    assert len(plan.stages) == STAGES
    assert [len(row) for row in step.run.compute] == [2 * COUNT] * STAGES
    assert step.seconds == pytest.approx(plan.predicted.seconds, rel=1e-9)
    assert step.bubble > (STAGES - 1) / (COUNT + STAGES - 1) - 1e-9


@pytest.mark.slow
def test_what_the_search_chooses_is_no_slower_than_that_and_found_in_time() -> None:
    """Capturing the model comes on top; a plan of many stages is written down late."""
    model, batch = build(GPT3, BATCH)
    options = pt.Options(
        hardware=HARDWARE, optimizer=OPTIMIZER, memory="78GiB", time_limit=60.0
    )
    started = time.process_time()
    plan = pt.plan(model, devices=RANKS, options=options, **batch)
    took_s = time.process_time() - started
    step = simulate_step(plan)
    print(f"{took_s:.1f} s, step {step.seconds:.3f} s on {plan.mesh}")
    assert took_s < LIMIT_S
    assert plan.search.seconds < 1.5 * options.time_limit
    assert plan.mesh.size == RANKS
    assert plan.predicted.bytes <= 78 * 2**30
    assert step.seconds == pytest.approx(plan.predicted.seconds, rel=1e-9)
    assert step.seconds <= published().predicted.seconds
