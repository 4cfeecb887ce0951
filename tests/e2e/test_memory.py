"""The memory that a plan predicts, and what the allocator gave on real gloo ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.storage_pins import storage_pins
from tests.models.turned import MACHINE
from tests.models.zoo import ZOO, Built, data_parallel_pins, tensor_parallel_pins
from tests.passes.test_exchange_instead import slow_at

import partita as pt
from partita.compiler.cost.collectives import CollectiveKind
from partita.compiler.cost.timeline import Category
from partita.runtime.launch import launch
from partita.runtime.measure_memory import measure_step

pytestmark = pytest.mark.dist

MESH = pt.Mesh(tp=2)
NAMES = ("gpt2", "llama")
STRATEGIES = ("data parallel", "tensor parallel", "in pieces", "ZeRO-2 made again")
PIPELINES = (("gpt2", 2), ("gpt2", 4), ("llama", 1), ("llama", 2), ("llama", 4))
AGAIN = {"gpt2": "transformer.h.*", "llama": "model.layers.*"}


def options_of(name: str, strategy: str, built: Built) -> pt.Options:
    """Return what makes a plan one of data or tensor parallelism, ZeRO-3 or ZeRO-2."""
    if strategy == "data parallel":
        return pt.Options(pins=data_parallel_pins(built, 1))
    if strategy == "tensor parallel":
        return pt.Options(pins=tensor_parallel_pins(built[0], 1))
    if strategy == "in pieces":
        return pt.Options(pins=storage_pins(built, "zero3", 1))
    return pt.Options(pins=storage_pins(built, "zero2", 1), recompute=(AGAIN[name],))


def peak_of_step(name: str, document: dict[str, Any]) -> int:
    """Return the most that this rank holds during a step."""
    model, args, kwargs = ZOO[name]()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    return measure_step(program, optimizer, *args, **kwargs).peak_bytes


@pytest.mark.slow
def test_what_passes_beside_computing_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """gloo lets go of its workspace when it is done, perhaps before any wait."""
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    built = ZOO["gpt2"]()
    model, args, kwargs = built
    options = options_of("gpt2", "in pieces", built)
    hardware = MACHINE(bytes_per_s=3e8, overlap=0.9)
    options = replace(options, recompute=("parameter:*",), hardware=hardware)
    plan = pt.plan(model, *args, mesh=MESH, options=options, **kwargs)
    assert plan.ahead
    assert plan.late
    what = f"{__file__}:peak_of_step", MESH.size, ("gpt2", plan.to_dict())
    measured = max(launch(*what, timeout_s=100.0))
    held = plan.memory()
    assert replace(plan, ahead={}, late={}).memory().peak_bytes < held.peak_bytes
    kernels = (
        held.by_category(at).get(Category.WORKSPACE, 0)
        for at in range(len(held.moments))
    )
    least = max(size - own for size, own in zip(held.bytes_at, kernels, strict=True))
    assert 0.99 * least < measured < 1.01 * plan.predicted.bytes


def check(
    monkeypatch: pytest.MonkeyPatch, name: str, strategy: str, **more: Any
) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")  # the ranks' profilers are silent
    built = ZOO[name]()
    model, args, kwargs = built
    options = replace(options_of(name, strategy, built), **more)
    plan = pt.plan(model, *args, mesh=MESH, options=options, **kwargs)
    what = f"{__file__}:peak_of_step", MESH.size, (name, plan.to_dict())
    measured = max(launch(*what, timeout_s=100.0))
    assert plan.predicted.bytes == pytest.approx(measured, rel=0.01)


def test_the_peak_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, "gpt2", "tensor parallel")


@pytest.mark.parametrize(
    ("strategy", "bucket"),
    [
        ("data parallel", 0),
        pytest.param("data parallel", "25MiB", marks=pytest.mark.slow),
        pytest.param("tensor parallel", 0, marks=pytest.mark.slow),
    ],
)
def test_sums_by_exchanges_are_counted_until_they_are_used(
    monkeypatch: pytest.MonkeyPatch, strategy: str, bucket: int | str
) -> None:
    hardware = slow_at((CollectiveKind.ALL_REDUCE,))
    check(monkeypatch, "gpt2", strategy, hardware=hardware, bucket=bucket)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NAMES)
def test_the_peak_of_every_strategy_is_predicted(
    monkeypatch: pytest.MonkeyPatch, name: str, strategy: str
) -> None:
    check(monkeypatch, name, strategy)


@pytest.mark.parametrize(
    ("name", "microbatches"),
    [("gpt2", 1), *(pytest.param(*c, marks=pytest.mark.slow) for c in PIPELINES)],
)
def test_the_peak_of_a_pipelines_stages_is_predicted(
    monkeypatch: pytest.MonkeyPatch, name: str, microbatches: int
) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    model, args, kwargs = ZOO[name]()
    # Time enough for the same plan on a busy machine: of other cuts what is sent counts
    # for more, which a rank may let go of sooner than is predicted.
    options = pt.Options(microbatches=microbatches, schedule="1f1b", time_limit=300)
    plan = pt.plan(model, *args, mesh=pt.Mesh(pp=2, dp=1), options=options, **kwargs)
    what = f"{__file__}:peak_of_step", MESH.size, (name, plan.to_dict())
    measured = max(launch(*what, timeout_s=100.0))
    assert plan.predicted.bytes == pytest.approx(measured, rel=0.015)
