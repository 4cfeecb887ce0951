"""Pipelines compute what the model does: in one process, and on real ranks.

Quick: one of each kind. ``pytest -m slow tests/e2e/test_pipelines.py`` takes all
models, meshes, schedules and random cuts; ``test_pipeline_matrix.py`` trains them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.e2e.trained import ADAMW, Trained
from tests.models.cut import drawn, search_of
from tests.models.more_models import MORE
from tests.models.staged import STAGED
from torch import nn

import partita as pt
from partita.compiler.capture.capture import Captured, capture
from partita.compiler.errors import RankFailed
from partita.compiler.ir.program import OutputKind
from partita.compiler.search.arrangement import SINGLE
from partita.compiler.search.parts import Clock
from partita.lowering import lower
from partita.microbatched import in_microbatches
from partita.one_mesh.planner import Planner
from partita.pipelines.pipeline_search import PipelineSearch
from partita.pipelines.pipeline_space import PipelineSpace, meshes_of
from partita.runtime.launch import launch
from partita.verifying.verification import DOUBLE_TOLERANCE, Verifier

WHOLE = ("clip", "resnet")  # a loss or norms over the whole batch
MESHES = ("pp=2", "pp=4", "pp=2,tp=2", "pp=2,dp=2", "pp=2,dp=2,tp=2")
SCHEDULES = ("gpipe", "1f1b", "zero-bubble", "frugal")


@lru_cache(maxsize=1)
def _captured(name: str, count: int) -> tuple[Captured, Verifier]:
    model, args, kwargs = {**MORE, **STAGED}[name]()
    captured = capture(model, args, kwargs)
    verifier = Verifier.of(model, args, kwargs, draws=captured.program.draws)
    return in_microbatches(captured, count, pt.default_rules), verifier


def check(name: str, plan: pt.Plan) -> None:
    captured, verifier = _captured(name, plan.microbatches)
    again = pt.Plan.from_dict(plan.to_dict())
    report = verifier.verify_captured(captured, again)
    assert report.ok, report
    assert report.max_error <= DOUBLE_TOLERANCE, report
    assert set(report.errors) >= set(verifier.double.values)


@pytest.mark.parametrize(
    ("name", "mesh", "count", "schedule"),
    [
        ("tied", "pp=4", 4, "1f1b"),
        ("hourglass", "pp=2,tp=2", 2, "zero-bubble"),
        ("chain", "pp=2,dp=2,tp=2", 2, "gpipe"),
    ],
)
def test_searched_plans_verify(name: str, mesh: str, count: int, schedule: str) -> None:
    captured, _ = _captured(name, count)
    check(name, search_of(captured, mesh, schedule=schedule).run())


def test_interleaved_stages_verify() -> None:
    captured, _ = _captured("chain", 4)
    options: dict[str, Any] = {"schedule": "interleaved", "stages_per_rank": 2}
    plan = search_of(captured, "pp=2,dp=2", **options).run()
    assert [stage.ranks for stage in plan.stages] == [(0, 1), (2, 3), (0, 1), (2, 3)]
    check("chain", plan)


@pytest.mark.parametrize("name", ["diamond", "tied"])
def test_a_random_cut_of_random_plans_verifies(name: str) -> None:
    captured, _ = _captured(name, 2)
    check(name, drawn(search_of(captured, "pp=2,tp=2", schedule="1f1b"), 0))


class Odd(nn.Module):
    """Layers of five, whose rows are mixed between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[3, 5, 5]``."""
        mixed = self.up(x).transpose(0, 1).reshape(-1, 5)
        return self.down(mixed.tanh()).square().mean()


class Centered(nn.Module):
    """A layer whose weight less its mean is used, as convolutions of NFNet do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[8, 4]``."""
        weight = self.weight - self.weight.mean()
        return (x.tanh() @ weight).square().mean()


def test_a_stage_that_takes_what_is_made_of_a_parameter_makes_a_part() -> None:
    built = Centered(), (torch.randn(8, 4),), {}
    captured = in_microbatches(capture(*built), 2, pt.default_rules)
    verifier = Verifier.of(*built)
    search = search_of(captured, "pp=2", schedule="gpipe")
    shared: list[tuple[int, ...]] = []
    for seed in range(5, 13):
        plan = drawn(search, seed)
        report = verifier.verify_captured(captured, plan)
        assert report.ok, report
        if any(o.kind is OutputKind.SHARED_GRADIENT for o in plan.outputs):
            shared.append(plan.parameters["weight"].homes)
    assert (0,) in shared


def test_ranks_of_unlike_shards_save_unlike_tensors() -> None:
    model, x = Odd(), torch.randn(3, 5, 5)
    captured = capture(model, (x,), {})
    search = search_of(captured, "pp=2,tp=2", schedule="gpipe", microbatches=1)
    plan = drawn(search, 19)
    saved = [
        {
            tuple(role for role in forward.outputs if role.kind is OutputKind.SAVED)
            for forward, _ in map(stage.parted, stage.of_all())
        }
        for stage in lower(captured, plan)
    ]
    assert max(map(len, saved)) > 1, "else this is no such plan"
    report = Verifier.of(model, (x,), {}).verify_captured(captured, plan)
    assert report.ok, report


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", STAGED)
def test_all_searched_plans_verify(name: str, mesh: str) -> None:
    captured, _ = _captured(name, 2)
    for schedule in SCHEDULES:
        check(name, search_of(captured, mesh, schedule=schedule).run())


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", STAGED)
def test_ten_random_cuts_verify(name: str, mesh: str) -> None:
    captured, _ = _captured(name, 2)
    search = search_of(captured, mesh, schedule="1f1b")
    for seed in range(10):
        check(name, drawn(search, seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MORE if name not in STAGED])
def test_every_architecture_runs_in_stages(name: str) -> None:
    captured, _ = _captured(name, 1 if name in WHOLE else 2)
    ways = {"pp=2,tp=2": "1f1b", "pp=4": "zero-bubble", "pp=2,dp=2,tp=2": "gpipe"}
    for mesh, schedule in ways.items():
        search = search_of(captured, mesh, schedule=schedule)
        check(name, search.run())
        check(name, drawn(search, 0))


# --- real ranks


def train_rank(name: str, document: dict[str, Any]) -> Trained:
    return ADAMW.train(ADAMW.built(STAGED[name]()), pt.Plan.from_dict(document))


def check_ranks(name: str, plan: pt.Plan) -> None:
    """Check that the ranks of a plan train as one process does."""
    model, args, kwargs = ADAMW.built(STAGED[name]())
    alone = pt.plan(model, *args, mesh="dp=1", **kwargs)
    wanted = ADAMW.train((model, args, kwargs), alone)
    ranks = launch(train_rank, plan.mesh.size, (name, plan.to_dict()), timeout_s=240)
    ADAMW.check(plan, ranks, wanted)


@pytest.mark.dist
def test_real_ranks_train_as_one_process() -> None:
    model, args, kwargs = ADAMW.built(STAGED["tied"]())
    options = pt.Options(microbatches=4, schedule="zero-bubble")
    check_ranks("tied", pt.plan(model, *args, mesh="pp=2", options=options, **kwargs))


def train_the_head(document: dict[str, Any]) -> tuple[int, list[str], list[float]]:
    """Return how many parameters a rank has, the names that are saved, the losses."""
    model, args, kwargs = ADAMW.built(STAGED["chain"]())
    program = pt.compile(model, pt.Plan.from_dict(document))
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(2):
        losses.append(float(program.step(*args, **kwargs)))
        optimizer.step()
        saved = program.optimizer_state_dict(optimizer)
        program.load_optimizer_state_dict(optimizer, saved)
    (group,) = program.optimizer_state_dict(optimizer)["param_groups"]
    return len([*program.named_parameters()]), group["params"], losses


@pytest.mark.dist
def test_a_rank_without_parameters_is_trained_as_others_are() -> None:
    model, args, kwargs = ADAMW.built(STAGED["chain"]())
    captured = in_microbatches(capture(model, args, kwargs), 2, pt.default_rules)
    search = search_of(captured, "pp=2", schedule="1f1b")
    plans = (drawn(search, seed) for seed in range(100))
    plan = next(
        plan
        for plan in plans
        if all(parameter.homes == (0,) for parameter in plan.parameters.values())
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    wanted: list[float] = []
    for _ in range(2):
        loss = model(*args, **kwargs)
        loss.backward()
        wanted.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    names = [name for name, _ in model.named_parameters()]
    ranks = launch(train_the_head, 2, (plan.to_dict(),), timeout_s=60)
    for (number, saved, losses), own in zip(ranks, (len(names), 0), strict=True):
        assert (number, saved) == (own, names)
        assert losses == pytest.approx(wanted, rel=1e-12)


def end_in_the_middle(document: dict[str, Any]) -> None:
    """Train; the second rank ends itself when it takes its part of the third target."""
    model, args, kwargs = STAGED["chain"]()
    program = pt.compile(model, pt.Plan.from_dict(document))
    program.step(*args, **kwargs)
    narrow, taken = torch.Tensor.narrow, 0

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal taken
        taken += 1
        if taken == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return narrow(*args, **kwargs)

    if os.environ["RANK"] == "1":
        torch.Tensor.narrow = counted
    program.step(*args, **kwargs)


def failure_of(target: Callable[[dict[str, Any]], None]) -> str:
    """Return how two ranks end that run ``target`` with a plan of the chain."""
    model, args, kwargs = STAGED["chain"]()
    options = pt.Options(microbatches=4, schedule="1f1b")
    plan = pt.plan(model, *args, mesh="pp=2", options=options, **kwargs)
    with pytest.raises(RankFailed) as caught:
        launch(target, 2, (plan.to_dict(),), timeout_s=60)
    return str(caught.value)


@pytest.mark.dist
def test_a_rank_killed_in_a_step_is_named_with_its_action() -> None:
    assert failure_of(end_in_the_middle) == (
        "rank 1 was killed by signal 9 (SIGKILL), at 1F2 of schedule '1f1b'"
    )


def step_again(document: dict[str, Any]) -> None:
    """Train; the second rank fails in the first step and goes on."""
    model, args, kwargs = STAGED["chain"]()
    program = pt.compile(model, pt.Plan.from_dict(document))
    if os.environ["RANK"] == "1":
        with (
            patch.object(torch.Tensor, "narrow", side_effect=MemoryError("no room")),
            pytest.raises(MemoryError),
        ):
            program.step(*args, **kwargs)
    program.step(*args, **kwargs)


@pytest.mark.dist
def test_a_rank_that_failed_in_a_step_does_not_go_on() -> None:
    assert failure_of(step_again).splitlines()[-1] == (
        "RuntimeError: this rank failed in an earlier call (MemoryError: no room), "
        "in which others may wait for it; end this run"
    )


@pytest.mark.dist
def test_stages_of_several_shapes_train_as_one_process() -> None:
    model, args, kwargs = ADAMW.built(STAGED["tied"]())
    options = pt.Options(hardware="cpu-gloo-free", microbatches=2, schedule="1f1b")
    captured = in_microbatches(capture(model, args, kwargs), 2, options.rules)
    planner = Planner(captured, type(model).__name__, SINGLE, options)
    space = PipelineSpace(((1, 2),), {1: meshes_of(1), 2: meshes_of(2)}, options)
    plan = PipelineSearch([planner], space, Clock.of(10.0)).run()
    assert [stage.mesh.size for stage in plan.stages] == [1, 2]
    check_ranks("tied", plan)
