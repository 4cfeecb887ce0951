"""A part that follows another by the model's own hand does so on real ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.models.momentum import MomentumEncoder
from torch import Tensor

import partita as pt
from partita.runtime.launch import launch

pytestmark = pytest.mark.dist

NUM_STEPS = 3
Built = tuple[MomentumEncoder, tuple[Tensor, Tensor]]


def built(way: str) -> Built:
    torch.manual_seed(0)
    return MomentumEncoder(way), (torch.randn(4, 8), torch.randn(4, 8))


def train(step: Any, parameters: Any) -> list[float]:
    """Return the losses of some steps, each with an update."""
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses: list[float] = []
    for _ in range(NUM_STEPS):
        losses.append(float(step()))
        optimizer.step()
        optimizer.zero_grad()
    return losses


def train_on_rank(way: str, document: Any) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses, and what the model keeps at the end."""
    model, args = built(way)
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    trained = [p for p in program.parameters() if p.requires_grad]
    losses = train(lambda: program.step(*args), trained)
    state: Any = program.state_dict()
    return losses, {name: value.full_tensor() for name, value in state.items()}


@pytest.mark.parametrize(
    ("way", "mesh", "pins"),
    [("other data", "dp=2", {"*.weight": "S(0)"}), ("in place", "pp=2", {})],
)
def test_what_follows_is_kept_from_step_to_step(
    way: str, mesh: str, pins: dict[str, str]
) -> None:
    model, args = built(way)
    alone = copy.deepcopy(model)

    def step() -> Tensor:
        loss = alone(*args)
        loss.backward()
        return loss.detach()

    losses = train(step, alone.query.parameters())
    schedule = "1f1b" if mesh == "pp=2" else "auto"
    options = pt.Options(pins=pins, schedule=schedule)
    plan = pt.plan(model, *args, mesh=mesh, options=options)
    told = (way, plan.to_dict())
    kept: set[str] = set()
    for found, state in launch(f"{__file__}:train_on_rank", 2, told, timeout_s=110.0):
        assert found == pytest.approx(losses, rel=1e-5)
        kept |= set(state)
        for name, value in state.items():
            wanted = alone.state_dict()[name]
            torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-6)
    assert kept == set(alone.state_dict())
