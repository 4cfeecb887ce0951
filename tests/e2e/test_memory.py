"""The memory that a plan predicts, and what the allocator gave on real gloo ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.zoo import (
    ZOO,
    data_parallel_pins,
    sharded_pins,
    tensor_parallel_pins,
)

import partita as pt
from partita.runtime.launch import launch
from partita.runtime.measure_memory import measure_step

pytestmark = pytest.mark.dist

MESH = pt.Mesh(tp=2)
NAMES = ("gpt2", "llama")


def planned(name: str) -> dict[str, pt.Plan]:
    """Return plans of a model by their strategies."""
    built = ZOO[name]()
    model, args, kwargs = built
    pieces = {name: f"{own} use=B" for name, own in sharded_pins(model, 1).items()}
    strategies = {
        "data parallel": data_parallel_pins(built, 1),
        "tensor parallel": tensor_parallel_pins(model, 1),
        "in pieces": data_parallel_pins(built, 1) | pieces,
    }
    return {
        strategy: pt.plan(
            model, *args, mesh=MESH, options=pt.Options(pins=pins), **kwargs
        )
        for strategy, pins in strategies.items()
    }


def measure(documents: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return this rank's peak of every plan, by model and strategy."""
    found: dict[str, dict[str, int]] = {}
    for name, plans in documents.items():
        for strategy, document in plans.items():
            model, args, kwargs = ZOO[name]()
            program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
            optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
            memory = measure_step(program, optimizer, *args, **kwargs)
            found.setdefault(name, {})[strategy] = memory.peak_bytes
    return found


def test_the_peak_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")  # the ranks' profilers are silent
    plans = {name: planned(name) for name in NAMES}
    documents = {
        name: {strategy: plan.to_dict() for strategy, plan in of_model.items()}
        for name, of_model in plans.items()
    }
    ranks = launch(f"{__file__}:measure", MESH.size, (documents,), timeout_s=110.0)
    for name, of_model in plans.items():
        for strategy, plan in of_model.items():
            measured = max(found[name][strategy] for found in ranks)
            where = f"{name}, {strategy}"
            assert plan.predicted.bytes == pytest.approx(measured, rel=0.05), where
