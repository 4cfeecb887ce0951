"""Mixed precision equals the eager model under torch.autocast, on one rank and more."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.storage_pins import storage_pins
from tests.models.zoo import ZOO, Built, data_parallel_pins, tensor_parallel_pins
from tests.slow import all_slow_but, slow

import partita as pt
from partita.one_mesh.planner import Planner
from partita.runtime.launch import launch
from partita.runtime.measure_memory import measure_step
from partita.verifying.verification import DOUBLE_TOLERANCE, Verifier

NUM_STEPS = 4
FREE = "cpu-gloo-free"
HALF = "bfloat16"


@pytest.mark.parametrize(
    "name", all_slow_but(["mlp"], ["mlp", "gpt2", "bert", "opt", "encoder"])
)
def test_one_rank_computes_the_same_bits(name: str) -> None:
    """But for the last bit of the loss: torch's kernel adds up its terms in an order
    of its own, the program's sum in another.
    """
    model, args, kwargs = ZOO[name]()
    options = pt.Options(precision=HALF)
    plan = pt.plan(model, *args, mesh="one=1", options=options, **kwargs)
    report = pt.verify(model, *args, plan=plan, **kwargs)
    assert report.ok, report
    errors = dict(report.own_errors)
    assert errors.pop("loss") <= torch.finfo(torch.float32).eps
    assert set(errors.values()) == {0.0}


@pytest.mark.parametrize("name", ["resnet", slow("vit"), slow("gpt2"), slow("bert")])
@pytest.mark.parametrize("precision", ["bfloat16", slow("float16")])
def test_one_rank_computes_the_same_but_for_the_sum_of_the_loss(
    name: str, precision: str
) -> None:
    model, args, kwargs = ZOO[name]()
    options = pt.Options(precision=precision)
    plan = pt.plan(model, *args, mesh="one=1", options=options, **kwargs)
    report = pt.verify(model, *args, plan=plan, **kwargs)
    assert report.ok, report
    assert max(report.own_errors.values()) < 1e-6, report


@pytest.mark.parametrize(
    "name", ["mlp", *map(slow, ("gpt2", "llama", "bert", "resnet"))]
)
def test_four_ranks_compute_what_the_model_does(name: str) -> None:
    model, args, kwargs = ZOO[name]()
    options = pt.Options(precision=HALF, hardware=FREE)
    plan = pt.plan(model, *args, mesh="dp=2,tp=2", options=options, **kwargs)
    assert plan.split_fraction > 0.9
    report = pt.verify(model, *args, plan=plan, **kwargs)
    assert report.ok, report
    assert report.max_error <= DOUBLE_TOLERANCE


@pytest.mark.parametrize("name", ["mlp", slow("gpt2"), slow("llama"), slow("resnet")])
def test_random_plans_compute_what_the_model_does(name: str) -> None:
    model, args, kwargs = ZOO[name]()
    options, mesh = pt.Options(precision=HALF), pt.Mesh(dp=2, tp=2)
    planner = Planner.of(model, args, kwargs, mesh, options)
    draws = planner.captured.program.draws
    verifier = Verifier.of(model, args, kwargs, draws=draws, precision=HALF)
    for seed in range(3):
        report = verifier.verify_captured(planner.captured, planner.random(seed))
        assert not report.failure
        assert report.max_error <= DOUBLE_TOLERANCE, report


WAYS: dict[str, tuple[str, pt.Options]] = {
    "microbatches": ("dp=2", pt.Options(microbatches=2)),
    "stages": ("pp=2,dp=1", pt.Options(microbatches=2)),
    "in pieces": ("dp=2", pt.Options(recompute=("parameter:*",))),
    "made again": ("dp=2", pt.Options(recompute=("transformer.h.*",))),
    "fused": ("dp=2", pt.Options(fuse=True)),
    "inference": ("dp=2", pt.Options(train=False)),
}
FAST = ("microbatches", "in pieces", "inference")


@pytest.mark.parametrize(
    ("name", "way"), [*(("mlp", way) for way in FAST), *(slow("gpt2", w) for w in WAYS)]
)
def test_it_goes_with_every_other_choice(name: str, way: str) -> None:
    built = ZOO[name]()
    model, args, kwargs = built
    mesh, options = WAYS[way]
    pins = storage_pins(built, "zero3", 1) if way == "in pieces" else {}
    options = replace(options, precision=HALF, pins=pins)
    plan = pt.plan(model, *args, mesh=mesh, options=options, **kwargs)
    plan = pt.Plan.from_dict(plan.to_dict())
    assert plan.options.precision == HALF
    report = pt.verify(model, *args, plan=plan, **kwargs)
    assert report.ok, report
    assert report.max_error <= DOUBLE_TOLERANCE


def pins_of(strategy: str, built: Built) -> dict[str, str]:
    if strategy == "tensor parallel":
        return tensor_parallel_pins(built[0], 1)
    if strategy == "in pieces":
        return storage_pins(built, "zero3", 1)
    return data_parallel_pins(built, 1)


def train_on_rank(name: str, document: Any, compilation: str) -> dict[str, Any]:
    """Train on this rank; return losses, and the dtypes of what it trained."""
    model, args, kwargs = ZOO[name]()
    plan = pt.Plan.from_dict(document)
    program = pt.compile(model, plan, device="cpu", compilation=compilation)
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    losses: list[float] = []
    dtypes: set[torch.dtype] = set()
    for _ in range(NUM_STEPS):
        losses.append(float(program.step(*args, **kwargs)))
        gradients = [p.grad for p in program.parameters() if p.grad is not None]
        dtypes |= {g.dtype for g in gradients}
        dtypes |= {p.dtype for p in program.parameters()}
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "dtypes": dtypes}


def train_alone(built: Built, precision: str | None) -> list[float]:
    model, args, kwargs = built
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    for _ in range(NUM_STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
            loss = model(*args, **kwargs)
            loss = loss if isinstance(loss, torch.Tensor) else loss.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


@pytest.mark.dist
@pytest.mark.parametrize(
    ("name", "strategy", "compilation"),
    [
        slow("gpt2", "data parallel", "eager"),
        ("gpt2", "in pieces", "eager"),
        slow("llama", "tensor parallel", "eager"),
        slow("resnet", "data parallel", "eager"),
        slow("mlp", "tensor parallel", "whole"),
    ],
)
def test_two_ranks_train_as_autocast_does(
    name: str, strategy: str, compilation: str
) -> None:
    built = ZOO[name]()
    model, args, kwargs = built
    options = pt.Options(precision=HALF, pins=pins_of(strategy, built))
    plan = pt.plan(model, *args, mesh="ranks=2", options=options, **kwargs)
    alone, exact = train_alone(built, HALF), train_alone(built, None)
    own = max(abs(a - b) for a, b in zip(alone, exact, strict=True))
    what = f"{__file__}:train_on_rank", 2, (name, plan.to_dict(), compilation)
    found = launch(*what, timeout_s=110.0)
    for result in found:
        assert result["losses"] == pytest.approx(alone, abs=2 * own)
        assert result["losses"] == found[0]["losses"]
        assert result["dtypes"] == {torch.float32}


def step_inside_and_outside(document: Any) -> list[float]:
    """Return the loss of a step, and of one in a block that autocasts."""
    model, args, _ = ZOO["mlp"]()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    losses = [float(program.step(*args))]
    with torch.autocast("cpu", torch.bfloat16):
        losses.append(float(program.step(*args)))
    return losses


@pytest.mark.dist
def test_a_program_runs_as_planned_whatever_is_around_it() -> None:
    model, args, _ = ZOO["mlp"]()
    plan = pt.plan(model, *args, mesh="ranks=2")
    what = f"{__file__}:step_inside_and_outside", 2, (plan.to_dict(),)
    for outside, inside in launch(*what, timeout_s=100.0):
        assert inside == outside


def peak_of_step(name: str, document: dict[str, Any]) -> int:
    """Return the most that this rank holds during a step."""
    model, args, kwargs = ZOO[name]()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    return measure_step(program, optimizer, *args, **kwargs).peak_bytes


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["tensor parallel", "in pieces"])
def test_the_peak_is_predicted(monkeypatch: pytest.MonkeyPatch, strategy: str) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")  # the ranks' profilers are silent
    built = ZOO["gpt2"]()
    model, args, kwargs = built
    options = pt.Options(precision=HALF, pins=pins_of(strategy, built))
    plan = pt.plan(model, *args, mesh="tp=2", options=options, **kwargs)
    what = f"{__file__}:peak_of_step", 2, ("gpt2", plan.to_dict())
    measured = max(launch(*what, timeout_s=100.0))
    assert plan.predicted.bytes == pytest.approx(measured, rel=0.01)
