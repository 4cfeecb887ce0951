"""What is too large to be planned as one stage is outlined, and the best is offered."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tests.models.pipelines import PIPELINES

import partita as pt
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.arrange import Best
from partita.compiler.search.parts import Clock
from partita.microbatched import in_microbatches
from partita.one_mesh.planner import Planner
from partita.one_mesh.ways_out import batch_of
from partita.pipelines.cutter import Cutter
from partita.pipelines.outlines import (
    Outlines,
    are_too_many,
    counts_in_order,
    is_natural,
)
from partita.pipelines.pipeline_search import ALL, PipelineSearch
from partita.pipelines.pipeline_space import PipelineSpace
from partita.pipelines.staged import SINGLE

OPTIONS = pt.Options(hardware="a100-80gb-selene")
COUNT, RANKS = 2, 16
LONG = Clock.of(100_000.0)


@lru_cache
def captured() -> Captured:
    model, args, kwargs = PIPELINES["chain"]()
    return capture(model, args, kwargs)


def planner() -> Planner:
    parts = in_microbatches(captured(), COUNT, OPTIONS.rules)
    return Planner(parts, "Model", SINGLE, OPTIONS)


def outlines(batch: int) -> Outlines:
    space = PipelineSpace.of_devices(RANKS, OPTIONS)
    cutter = Cutter(planner(), space, LONG)
    return Outlines(cutter.plans, space, COUNT, cutter.stages(LONG), 1.0, batch)


def test_the_best_outline_is_offered_on_one_natural_mesh() -> None:
    best = Best()
    outlines(8).offer(best)
    found = best.arrangement
    assert found is not None
    (mesh,) = {*found.meshes}
    assert is_natural(mesh, COUNT, 8, 8)
    assert len({*found.form.sizes}) == 1
    (sizes,) = {form.form.sizes for _, form in best.of_form.values()}
    assert sizes == found.form.sizes
    assert best.seconds == min(seconds for seconds, _ in best.of_form.values())


def test_outlines_that_leave_ranks_idle_are_not_looked_at() -> None:
    best = Best(seconds=1e-12)  # known to be faster
    outlines(8).offer(best)
    assert best.arrangement is None
    assert not best.of_form


def test_meshes_are_natural_whose_ranks_have_equal_parts_within_a_node() -> None:
    assert is_natural(Mesh(dp=4, tp=8), 2, 8, 8)
    assert not is_natural(Mesh(dp=4, tp=8), 4, 8, 8)  # half a sample for each
    assert not is_natural(Mesh(dp=2, tp=16), 2, 8, 8)  # of two nodes
    assert is_natural(Mesh(dp=2, tp=16), 2, 8, None)


def test_what_is_too_much_depends_on_what_is_open_and_on_the_time() -> None:
    space = PipelineSpace.of_devices(RANKS, OPTIONS)
    assert are_too_many(space, 10_000, 10.0)
    assert not are_too_many(space, 10_000, 1000.0)
    fixed = PipelineSpace.of_stages(4, Mesh(dp=2, tp=2), OPTIONS)
    assert not are_too_many(fixed, 10_000, 1.0)


def test_numbers_of_microbatches_that_leave_ranks_waiting_least_come_first() -> None:
    space = PipelineSpace.of_devices(RANKS, OPTIONS)
    calm = counts_in_order(captured(), space, 8, 1000.0)
    hurried = counts_in_order(captured(), space, 8, 0.01)
    assert sorted(calm) == sorted(hurried) == [1, 2, 4, 8]
    in_some = replace(space, sizes=((8,) * 2,))
    (first, *_) = counts_in_order(captured(), in_some, 8, 0.01)
    assert first == 4  # of 8 each of two ranks would have half a sample


def test_a_search_without_time_for_all_outlines_and_says_so() -> None:
    options = replace(OPTIONS, schedule="1f1b")
    space = PipelineSpace.of_devices(RANKS, options)
    calls = sum(1 for _ in captured().program.calls())
    assert are_too_many(space, calls, 0.01)
    plan = PipelineSearch([planner()], space, Clock.of(0.01)).run()
    assert plan.search.status != ALL
    (mesh,) = {stage.mesh for stage in plan.stages}
    batch = batch_of(captured().inputs.leaves)
    assert is_natural(mesh, COUNT, batch, 8)
    (tried,) = plan.search.tried  # no other form was planned
    assert tried.seconds is not None


def test_the_schedule_that_waits_least_is_offered_before_time_is_over() -> None:
    space = PipelineSpace.of_devices(RANKS, OPTIONS)
    plan = PipelineSearch([planner()], space, Clock.of(0.01)).run()
    assert plan.schedule is not None
    assert plan.schedule.name == "zero-bubble"
