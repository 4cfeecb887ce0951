"""Pipelines cut at places drawn at random: the same ones on every machine."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import partita as pt
from partita.compiler.capture.capture import Captured
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.parts import Clock
from partita.one_mesh.planner import Planner
from partita.pipelines.pipeline_search import PipelineSearch
from partita.pipelines.pipeline_space import PipelineSpace
from partita.pipelines.stage_plans import Planned, StagePlans
from partita.pipelines.staged import joined, stage_mesh


def search_of(
    captured: Captured, mesh: str, hardware: str = "cpu-gloo-free", **options: Any
) -> PipelineSearch:
    """Return the search of a pipeline, by default under links that cost nothing."""
    whole = Mesh.parse(mesh)
    asked = pt.Options(hardware=hardware, **options)
    inner = stage_mesh(whole)
    space = PipelineSpace.of_stages(whole.sizes[0], inner, asked)
    planner = Planner(captured, "Model", inner, asked)
    return PipelineSearch([planner], space, Clock.of(10.0))


def drawn(search: PipelineSearch, seed: int) -> pt.Plan:
    """Return a plan cut at random, whose stages are drawn at random too."""
    rng = random.Random(seed)
    (planner,) = search.programs
    form = search.space.forms(planner.captured.program.in_time.count)[0]
    plans = StagePlans.of(planner, search.clock)
    count, num = len(plans.line.forward), form.schedule.num_stages
    ends = [*sorted(rng.sample(range(1, count), num - 1)), count]
    parts: list[Planned] = []
    for program in plans.programs(ends):
        own = replace(planner, captured=replace(planner.captured, program=program))
        parts.append(Planned.of(own.random(seed), program))
    return joined(planner, parts, form.ranks, form.schedule)
