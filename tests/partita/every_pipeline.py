"""Every pipeline of a space, priced one by one: what its search is compared with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product
from math import inf

from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.arrangement import Arrangement, Form
from partita.compiler.search.pipeline_step import (
    Hop,
    PlacedStage,
    hops_to,
    most_bytes,
    step_seconds,
)
from partita.pipeline_space import PipelineSpace
from partita.stage_plans import Room, StagePlans

Priced = tuple[Arrangement, float]


def every_pipeline(plans: StagePlans, space: PipelineSpace) -> Iterator[Priced]:
    """Yield all arrangements of one stage on a row, and what the step takes."""
    last = len(plans.line.forward)
    by_place: dict[tuple[tuple[int, ...], tuple[Mesh, ...]], list[Form]] = {}
    for form in space.forms(plans.captured.program.in_time.count):
        assert form.schedule.num_stages == len(form.sizes)
        for meshes in product(*form.meshes):
            by_place.setdefault((form.sizes, meshes), []).append(form)
    for (sizes, meshes), forms in by_place.items():
        for inside in combinations(range(1, last), len(sizes) - 1):
            yield from _priced(plans, (*inside, last), meshes, forms)


def _priced(
    plans: StagePlans,
    ends: tuple[int, ...],
    meshes: tuple[Mesh, ...],
    forms: list[Form],
) -> Iterator[Priced]:
    """Yield what one cut takes by each schedule that it fits."""
    known: dict[tuple[int | None, ...], tuple[list[PlacedStage], list[Hop]] | None] = {}
    limit = plans.planner.limit
    for form in forms:
        live = form.schedule.most_live
        key = (None,) * len(live) if limit is None else live
        if key not in known:
            known[key] = _placed(plans, ends, meshes, form)
        found = known[key]
        if found is None:
            continue
        stages, hops = found
        if limit is not None:
            assert most_bytes(form.schedule, stages) <= limit
        seconds = step_seconds(form.schedule, stages, hops)
        yield Arrangement(form, ends, meshes, (limit,) * len(ends)), seconds


def _placed(
    plans: StagePlans, ends: tuple[int, ...], meshes: tuple[Mesh, ...], form: Form
) -> tuple[list[PlacedStage], list[Hop]] | None:
    limit = plans.planner.limit
    is_trained = bool(plans.captured.program.trained)
    stages: list[PlacedStage] = []
    begins = (0, *ends)
    for number, end in enumerate(ends):
        own = plans.program(begins[number], end).ends
        if is_trained and not own.sums:
            return None
        room = None if limit is None else Room(limit, form.schedule.most_live[number])
        cost = plans.cost(begins[number], end, meshes[number], room)
        if cost is None:
            return None
        stages.append(PlacedStage(cost, own, meshes[number], form.ranks[number]))
    hardware = load_hardware(plans.planner.options.hardware)
    every = range(len(stages))
    return stages, [h for number in every for h in hops_to(stages, number, hardware)]


def least_seconds(plans: list[StagePlans], space: PipelineSpace) -> float:
    """Return what the fastest of all takes; infinity where none fits."""
    return min(
        (s for each in plans for _, s in every_pipeline(each, space)), default=inf
    )
