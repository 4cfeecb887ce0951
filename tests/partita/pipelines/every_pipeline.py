"""Every pipeline of a space, priced one by one: what its search is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import inf
from typing import NamedTuple

from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.arrangement import Form
from partita.compiler.search.pipeline_step import (
    Hop,
    PlacedStage,
    hops_to,
    most_bytes,
    step_seconds,
)
from partita.compiler.search.wanted import Wanted
from partita.pipelines.pipeline_space import PipelineSpace
from partita.pipelines.stage_plans import Room, StagePlans


class Pipeline(NamedTuple):
    """One way to cut a program: form, where stages end, and the mesh of each."""

    form: Form
    ends: tuple[int, ...]
    meshes: tuple[Mesh, ...]


def least_seconds(plans: list[StagePlans], space: PipelineSpace) -> float:
    """Return what the fastest of all takes; infinity where none fits."""
    return min((_least(each, space) for each in plans), default=inf)


def _least(plans: StagePlans, space: PipelineSpace) -> float:
    """Return what the fastest takes of one number of microbatches.

    Under a limit no stage is faster than without one: what takes too long even so is
    not priced within it, nor is a stage that keeps a rank busy for as long as that.
    """
    free = sorted(_every_pipeline(plans, space), key=lambda found: found[0])
    limit = plans.planner.limit
    if limit is None:
        return free[0][0] if free else inf
    least = inf
    for free_s, pipeline in free:
        if free_s >= least:
            break
        placed = _placed(plans, pipeline, limit, least)
        if placed is not None:
            schedule = pipeline.form.schedule
            assert most_bytes(schedule, placed[0]) <= limit
            seconds = step_seconds(schedule, *placed)
            assert seconds >= free_s * (1 - 1e-9)
            least = min(least, seconds)
    return least


def _every_pipeline(
    plans: StagePlans, space: PipelineSpace
) -> Iterator[tuple[float, Pipeline]]:
    """Yield all of one stage on a row, with what the step takes without a limit."""
    last = len(plans.line.forward)
    by_place: dict[tuple[tuple[int, ...], tuple[Mesh, ...]], list[Form]] = {}
    for form in space.forms(plans.captured.program.in_time.count):
        assert form.schedule.num_stages == len(form.sizes)
        for meshes in product(*form.meshes):
            by_place.setdefault((form.sizes, meshes), []).append(form)
    for (sizes, meshes), forms in by_place.items():
        for inside in combinations(range(1, last), len(sizes) - 1):
            placed = _placed(plans, Pipeline(forms[0], (*inside, last), meshes), None)
            if placed is not None:
                for form in forms:
                    seconds = step_seconds(form.schedule, *placed)
                    yield seconds, Pipeline(form, (*inside, last), meshes)


def _placed(
    plans: StagePlans, pipeline: Pipeline, limit: int | None, below_s: float = inf
) -> tuple[list[PlacedStage], list[Hop]] | None:
    form, ends, meshes = pipeline
    is_trained = bool(plans.captured.program.trained)
    stages: list[PlacedStage] = []
    begins = (0, *ends)
    for number, end in enumerate(ends):
        own = plans.program(begins[number], end).ends
        if is_trained and not own.sums:
            return None
        room = None if limit is None else Room(limit, form.schedule.most_live[number])
        cost = plans.cost(begins[number], end, meshes[number], room, Wanted(below_s))
        if cost is None:
            return None
        stages.append(PlacedStage(cost, own, meshes[number], form.ranks[number]))
    hardware = load_hardware(plans.planner.options.hardware)
    every = range(len(stages))
    return stages, [h for number in every for h in hops_to(stages, number, hardware)]
