"""The search of pipelines finds the fastest of all of them, and says what it tried.

Quick: a small space. ``pytest -m slow`` takes four ranks, all schedules of one stage on
a row, three numbers of microbatches, with and without a limit that binds.
"""

from __future__ import annotations

import random
from dataclasses import replace
from functools import lru_cache
from math import inf
from types import SimpleNamespace

import pytest
import torch
from tests.models.pipelines import FEW_CALLS, PIPELINES, conv_stem
from tests.partita.pipelines.every_pipeline import least_seconds
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.errors import NoSolution
from partita.compiler.search.arrange import Arranger, Best
from partita.compiler.search.arrangement import SINGLE
from partita.compiler.search.joint import JointOutcome, JointSearch
from partita.compiler.search.parts import Clock
from partita.microbatched import in_microbatches
from partita.one_mesh.planner import Planner
from partita.pipelines import pipeline_search
from partita.pipelines.cutter import Cutter
from partita.pipelines.pipeline_search import ALL, NOT_ALL, NOT_SHOWN, PipelineSearch
from partita.pipelines.pipeline_space import PipelineSpace
from partita.pipelines.stage_plans import StagePlans
from partita.pipelines.stage_search import StageSearch
from partita.pipelines.staged import arranged
from partita.verifying.verification import Verifier

CLOCK = Clock.of(100_000.0)


@lru_cache
def _captured(name: str) -> tuple[Captured, Verifier]:
    model, args, kwargs = FEW_CALLS[name]()
    captured = capture(model, args, kwargs)
    return captured, Verifier.of(model, args, kwargs, draws=captured.program.draws)


def planners(name: str, counts: tuple[int, ...], options: pt.Options) -> list[Planner]:
    captured, _ = _captured(name)
    parts = [in_microbatches(captured, m, options.rules) for m in counts]
    return [Planner(part, "Model", SINGLE, options) for part in parts]


def check_is_least(
    name: str, ranks: int, counts: tuple[int, ...], options: pt.Options
) -> pt.Plan:
    """Check that the fastest of all pipelines is found, and that it verifies."""
    space = PipelineSpace.of_devices(ranks, options)
    made = planners(name, counts, options)
    search = PipelineSearch(made, space, CLOCK)
    plan = search.run()
    assert plan.search.status == ALL
    least = least_seconds([StagePlans.of(each, CLOCK) for each in made], space)
    assert plan.predicted.seconds == pytest.approx(least, rel=1e-9, abs=0)
    (planner,) = (
        p for p in made if p.captured.program.in_time.count == plan.microbatches
    )
    _, verifier = _captured(name)
    report = verifier.verify_captured(
        planner.captured, pt.Plan.from_dict(plan.to_dict())
    )
    assert report.ok, report
    return plan


@pytest.mark.parametrize("hardware", ["cpu-gloo", "cpu-gloo-free"])
def test_the_fastest_of_all_pipelines_is_found(hardware: str) -> None:
    options = pt.Options(hardware=hardware, stages_per_rank=1)
    check_is_least("hourglass", 2, (2,), options)


@pytest.mark.parametrize("hardware", ["cpu-gloo", "cpu-gloo-free"])
def test_devices_find_the_fastest_of_one_stage_and_several(hardware: str) -> None:
    asked = {"microbatches": 2, "schedule": "auto", "stages_per_rank": 1}
    options = pt.Options(hardware=hardware, time_limit=2000.0, **asked)  # type: ignore[arg-type]
    model, args, kwargs = FEW_CALLS["hourglass"]()
    found = pt.plan(model, *args, devices=2, options=options, **kwargs)
    one = pt.plan(
        model,
        *args,
        mesh="dp=2",
        options=pt.Options(hardware=hardware, microbatches=2),
        **kwargs,
    )
    (planner,) = planners("hourglass", (2,), options)
    space = PipelineSpace.of_devices(2, options)
    several_s = least_seconds([StagePlans.of(planner, CLOCK)], space)
    least_s = min(one.predicted.seconds, several_s)
    assert found.predicted.seconds == pytest.approx(least_s, rel=1e-9, abs=0)
    assert pt.verify(model, *args, plan=found, **kwargs).ok


@pytest.mark.parametrize(("most", "status"), [(2000, ALL), (1, NOT_ALL)])
def test_few_stages_are_all_looked_at_while_there_is_time(
    monkeypatch: pytest.MonkeyPatch, most: int, status: str
) -> None:
    """What was tried before took no time by this clock, and that has no more."""
    standing = SimpleNamespace(perf_counter=lambda: 0.0)
    monkeypatch.setattr(pipeline_search, "time", standing)
    monkeypatch.setattr(pipeline_search, "_PART", 0.0)
    monkeypatch.setattr(pipeline_search, "_FEW_STAGES", most)
    options = pt.Options(stages_per_rank=1, schedule="1f1b")
    space = PipelineSpace.of_devices(2, options)
    plan = PipelineSearch(planners("chain", (2,), options), space, CLOCK).run()
    assert plan.search.status == status


def test_stages_that_may_be_faster_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage's search within a limit that ends early has shown nothing."""
    options = pt.Options(stages_per_rank=1, schedule="1f1b")
    space = PipelineSpace.of_devices(2, options)
    free = PipelineSearch(planners("hourglass", (2,), options), space, CLOCK).run()
    tight = replace(options, memory=free.predicted.bytes - 1)

    def nothing(*_: object) -> JointOutcome:
        return JointOutcome(None, 0.0)

    monkeypatch.setattr(JointSearch, "run", nothing)
    plan = PipelineSearch(planners("hourglass", (2,), tight), space, CLOCK).run()
    assert plan.search.status == NOT_SHOWN


def test_no_stage_is_searched_within_a_limit_that_takes_much_longer_than_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = pt.Options(hardware="cpu-gloo-free", stages_per_rank=1, schedule="1f1b")
    space = PipelineSpace.of_devices(2, options)
    free = PipelineSearch(planners("hourglass", (2,), options), space, CLOCK).run()
    tight = replace(options, memory=free.predicted.bytes - 1)
    run, asked = StageSearch.run, list[float]()

    def noted(self: StageSearch) -> pt.Plan:
        wanted = self.search.wanted
        if self.room is not None and not wanted.is_rough:
            asked.append(wanted.below_s)
        return run(self)

    def nothing(*_: object) -> None:
        """Nothing is known beforehand."""

    monkeypatch.setattr(StageSearch, "run", noted)
    monkeypatch.setattr(Cutter, "try_cuts", nothing)
    monkeypatch.setattr(pipeline_search, "_improve", nothing)
    plan = PipelineSearch(planners("hourglass", (2,), tight), space, CLOCK).run()
    assert plan.search.status == ALL
    assert asked
    assert max(asked) < 1.25 * plan.predicted.seconds


def test_forms_with_too_many_cuts_are_not_claimed_to_be_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = pt.Options(stages_per_rank=1, schedule="1f1b")
    space = PipelineSpace.of_devices(2, options)
    monkeypatch.setattr(pipeline_search, "_MOST_CUTS", 1.0)
    plan = PipelineSearch(planners("chain", (2,), options), space, CLOCK).run()
    assert plan.search.status == NOT_ALL
    assert plan.search.gap is None


def test_the_fastest_within_a_limit_is_found() -> None:
    options = pt.Options(stages_per_rank=1, schedule="1f1b")
    free = check_is_least("hourglass", 2, (2,), options)
    limit = free.predicted.bytes - 1
    found = check_is_least("hourglass", 2, (2,), replace(options, memory=limit))
    assert found.predicted.bytes <= limit


@pytest.mark.slow
@pytest.mark.parametrize("hardware", ["cpu-gloo", "cpu-gloo-free"])
@pytest.mark.parametrize(
    ("name", "counts"),
    [
        *[("chain", (1, 2, 4)), ("hourglass", (1, 2, 4))],
        *[(name, (count,)) for name in ("diamond", "tied") for count in (1, 2, 4)],
    ],
)
def test_the_fastest_of_all_on_four_ranks_is_found(
    name: str, counts: tuple[int, ...], hardware: str
) -> None:
    options = pt.Options(hardware=hardware, stages_per_rank=1)
    check_is_least(name, 4, counts, options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "part"),
    [
        *[(name, count, 0.9) for name in FEW_CALLS for count in (1, 2, 4)],
        *[(name, 2, 0.75) for name in ("chain", "hourglass", "diamond")],
        ("diamond", 1, 0.75),
    ],
)
def test_the_fastest_of_four_ranks_within_a_limit_is_found(
    name: str, count: int, part: float
) -> None:
    """All that fit by 1F1B: searching a stage within a limit takes a second."""
    options = pt.Options(hardware="cpu-gloo-free", stages_per_rank=1, schedule="1f1b")
    free = check_is_least(name, 4, (count,), options)
    limit = int(part * free.predicted.bytes)
    found = check_is_least(name, 4, (count,), replace(options, memory=limit))
    assert found.predicted.bytes <= limit < free.predicted.bytes
    assert found.predicted.seconds >= free.predicted.seconds * (1 - 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chain", "hourglass"])
def test_where_none_of_four_ranks_fits_that_is_said(name: str) -> None:
    """Before anything is let go of, what the whole batch makes takes more."""
    options = pt.Options(hardware="cpu-gloo-free", stages_per_rank=1, schedule="1f1b")
    space = PipelineSpace.of_devices(4, options)
    free = PipelineSearch(planners(name, (1,), options), space, CLOCK).run()
    limited = replace(options, memory=int(0.75 * free.predicted.bytes))
    made = planners(name, (1,), limited)
    space = PipelineSpace.of_devices(4, limited)
    with pytest.raises(NoSolution, match="no plan was found that needs less"):
        PipelineSearch(made, space, CLOCK).run()
    assert least_seconds([StagePlans.of(each, CLOCK) for each in made], space) == inf


def test_figures_of_stages_are_those_of_the_plan() -> None:
    rng = random.Random(0)
    for name in FEW_CALLS:
        (planner,) = planners(name, (2,), pt.Options())
        cutter = Cutter(planner, PipelineSpace.of_devices(4, planner.options), CLOCK)
        for form in rng.sample(cutter.forms, 3):
            last = len(cutter.plans.line.forward)
            inside = rng.sample(range(1, last), form.schedule.num_stages - 1)
            meshes = tuple(rng.choice(own) for own in form.meshes)
            best = Best()
            stages = replace(cutter.stages(CLOCK), homes=())  # cuts anywhere
            Arranger(form, stages, best).offer((*sorted(inside), last), meshes)
            assert best.arrangement is not None
            plan = arranged(cutter.plans, best.arrangement)
            assert plan.predicted.seconds == pytest.approx(best.seconds, rel=1e-9)
            report = _captured(name)[1].verify_captured(
                planner.captured, pt.Plan.from_dict(plan.to_dict())
            )
            assert report.ok, report


def test_a_searched_cut_is_faster_than_one_of_equal_layers() -> None:
    model, args, kwargs = conv_stem()
    options = pt.Options(schedule="1f1b", microbatches=4)
    captured = in_microbatches(capture(model, args, kwargs), 4, options.rules)
    planner = Planner(captured, "ConvStem", SINGLE, options)
    space = PipelineSpace.of_stages(2, SINGLE, options)
    plan = PipelineSearch([planner], space, CLOCK).run()
    assert plan.search.status == ALL
    cutter = Cutter(planner, space, CLOCK)
    forward = cutter.plans.line.forward
    equal = next(at for at, key in enumerate(forward) if key.startswith("wide.0"))
    (form,) = cutter.forms
    arranger = Arranger(form, cutter.stages(CLOCK), Best())
    layers_s = arranger.offer((equal, len(forward)), (SINGLE, SINGLE))
    assert layers_s >= 1.2 * plan.predicted.seconds


def test_what_was_tried_is_in_the_plan() -> None:
    model, args, kwargs = PIPELINES["chain"]()
    options = pt.Options(hardware="cpu-gloo-free", microbatches=2, time_limit=15.0)
    plan = pt.plan(model, *args, devices=2, options=options, **kwargs)
    tried = {row.way: row.seconds for row in plan.search.tried}
    assert "mesh dp=2" in tried
    names = {"1f1b", "frugal", "gpipe", "interleaved", "zero-bubble"}
    found = {name for name in names for way in tried if f", {name}, 2 micro" in way}
    assert found >= names - {"gpipe"}  # which of two microbatches differs little
    least = min(seconds for seconds in tried.values() if seconds is not None)
    assert plan.predicted.seconds == pytest.approx(least, rel=1e-9)
    assert pt.Plan.from_dict(plan.to_dict()).search == plan.search


def test_schedules_that_do_not_fit_are_left_out() -> None:
    model, args, kwargs = PIPELINES["chain"]()
    asked = {"hardware": "cpu-gloo-free", "microbatches": 8, "stages_per_rank": 1}

    def planned(**more: object) -> pt.Plan:
        options = pt.Options(**asked, **more)  # type: ignore[arg-type]
        return pt.plan(model, *args, mesh="pp=2", options=options, **kwargs)

    free = planned(schedule="frugal").predicted.bytes
    least = planned(schedule="frugal", memory=free - 1, time_limit=4.0)
    limit = least.predicted.bytes
    with pytest.raises(NoSolution, match="no plan was found that needs less"):
        planned(schedule="gpipe", memory=limit, time_limit=4.0)
    within = planned(memory=limit, time_limit=4.0)
    assert within.predicted.bytes <= limit
    assert within.predicted.seconds <= least.predicted.seconds * (1 + 1e-9)
    assert within.schedule.name != "gpipe"


def test_more_stages_than_places_to_train_at_are_refused() -> None:
    model, args, kwargs = FEW_CALLS["chain"]()
    options = pt.Options(microbatches=2)
    with pytest.raises(NoSolution, match=r"each of 8 rows .* there are 4 places"):
        pt.plan(model, *args, mesh="pp=8", options=options, **kwargs)


def test_few_places_are_the_reason_even_where_there_are_few_calls() -> None:
    model, options = nn.Linear(4, 4, bias=False), pt.Options(loss=Tensor.sum)
    with pytest.raises(NoSolution, match=r"each of 4 rows .* there is 1 place"):
        pt.plan(model, torch.ones(8, 4), mesh="pp=4", options=options)
