"""Steps in microbatches: equal to the batch in one piece, as counted and predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.models.dropout import with_dropout
from tests.models.zoo import (
    ZOO,
    Built,
    data_parallel_pins,
    sharded_pins,
    tensor_parallel_pins,
)

import partita as pt
from partita.runtime.launch import launch
from partita.runtime.measure_memory import measure_step

TP2, DP2_TP2 = pt.Mesh(tp=2), pt.Mesh(dp=2, tp=2)


def pins_of(strategy: str, name: str) -> dict[str, str]:
    """Return what makes a plan one of tensor or data parallelism, or of ZeRO-3."""
    built = ZOO[name]()
    if strategy == "tensor parallel":
        return tensor_parallel_pins(built[0], 1)
    stored = sharded_pins(built[0], 1) if strategy == "in pieces" else {}
    pieces = {n: f"{own} use=B" for n, own in stored.items()}
    return data_parallel_pins(built, 1) | pieces


def planned_in_parts(
    built: Built, mesh: pt.Mesh, count: int, pins: dict[str, str]
) -> pt.Plan:
    """Return a plan of a model for so many microbatches."""
    model, args, kwargs = built
    hardware = "cpu-gloo" if pins else "cpu-gloo-free"
    options = pt.Options(
        microbatches=count, pins=pins, hardware=hardware, time_limit=10
    )
    return pt.plan(model, *args, mesh=mesh, options=options, **kwargs)


def check_verified(name: str, mesh: pt.Mesh, count: int) -> None:
    pins = pins_of("tensor parallel", name) if mesh == TP2 else {}
    built = with_dropout(name)
    plan = planned_in_parts(built, mesh, count, pins)
    model, args, kwargs = built
    assert plan.microbatches == count
    report = pt.verify(model, *args, plan=plan, **kwargs)
    assert report.ok, report
    assert report.max_error <= 1e-9


@pytest.mark.parametrize(
    ("name", "mesh", "count"),
    [("mlp", DP2_TP2, 4), ("gpt2", TP2, 2)],
    ids=str,
)
def test_parts_compute_what_the_whole_batch_does(
    name: str, mesh: pt.Mesh, count: int
) -> None:
    check_verified(name, mesh, count)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("mesh", [TP2, DP2_TP2], ids=str)
@pytest.mark.parametrize("name", ["mlp", "gpt2", "llama", "encoder"])
def test_parts_compute_what_the_whole_batch_does_everywhere(
    name: str, mesh: pt.Mesh, count: int
) -> None:
    check_verified(name, mesh, count)


def outputs_on_rank(path: str) -> tuple[float, torch.Tensor]:
    """Return the loss of a step by a saved plan, and the forward's logits."""
    model, args, kwargs = ZOO["gpt2"]()
    program = pt.compile(model, pt.Plan.load(path), device="cpu")
    logits = program(*args, **kwargs).logits
    whole = program.output_dtensors(*args, **kwargs)["logits"]
    assert torch.equal(whole.full_tensor(), logits)
    return float(program.step(*args, **kwargs)), logits


@pytest.mark.dist
def test_a_saved_plan_runs_in_parts_and_gives_whole_outputs(tmp_path: Path) -> None:
    built = ZOO["gpt2"]()
    plan = planned_in_parts(built, TP2, 2, pins_of("data parallel", "gpt2"))
    path = tmp_path / "plan.json"
    plan.save(path)
    model, args, kwargs = built
    with torch.no_grad():
        wanted = model(*args, **kwargs)
    what = f"{__file__}:outputs_on_rank", TP2.size, (str(path),)
    for loss, logits in launch(*what, timeout_s=110.0):
        assert loss == pytest.approx(float(wanted.loss), rel=1e-5)
        torch.testing.assert_close(logits, wanted.logits, rtol=1e-5, atol=1e-5)


def peak_of_step(name: str, document: dict[str, Any]) -> int:
    """Return the most that this rank holds during a step."""
    model, args, kwargs = with_dropout(name)
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    return measure_step(program, optimizer, *args, **kwargs).peak_bytes


def check_peak(
    monkeypatch: pytest.MonkeyPatch, name: str, strategy: str, count: int
) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")  # the ranks' profilers are silent
    plan = planned_in_parts(with_dropout(name), TP2, count, pins_of(strategy, name))
    what = f"{__file__}:peak_of_step", TP2.size, (name, plan.to_dict())
    measured = max(launch(*what, timeout_s=100.0))
    assert plan.predicted.bytes == pytest.approx(measured, rel=0.05)


@pytest.mark.slow
@pytest.mark.dist
def test_the_peak_in_parts_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    check_peak(monkeypatch, "llama", "in pieces", 4)


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("strategy", ["data parallel", "tensor parallel", "in pieces"])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_peak_of_every_strategy_in_parts_is_predicted(
    monkeypatch: pytest.MonkeyPatch, name: str, strategy: str, count: int
) -> None:
    check_peak(monkeypatch, name, strategy, count)
