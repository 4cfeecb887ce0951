"""Pipelines at another batch, against what their own plans predict."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import partita as pt
from partita.carried.like import plan_like
from partita.compiler.plan.document import Ref
from partita.compiler.plan.plan import Plan
from partita.plots.batch_dims import find_batch
from partita.plots.scaling import scale

WIDTH = 256
BATCH = 1024


def model_and_batch(batch: int) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(4))
    return nn.Sequential(*layers), torch.randn(batch, WIDTH)


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Return a plan of two stages of two ranks that reduce what layers make."""
    model, x = model_and_batch(BATCH)
    options = pt.Options(
        microbatches=4,
        schedule="1f1b",
        loss=lambda out: out.square().mean(),
        pins={"0.0.weight": "(S(0),)", "1.0.weight": "(S(1),)"},
    )
    return pt.plan(model, x, mesh=pt.Mesh(pp=2, dp=2), options=options)


@pytest.mark.parametrize("times", [0.5, 2])
def test_another_batch_takes_what_its_own_plan_says(plan: Plan, times: float) -> None:
    batch = int(BATCH * times)
    model, x = model_and_batch(batch)
    other, _ = plan_like(model, x, like=plan)
    assert decided(other) == decided(plan)
    (found,) = scale(plan, sizes=[batch]).seconds
    assert found == pytest.approx(other.predicted.seconds, rel=1e-6)


def decided(plan: Plan) -> list[object]:
    """Return the stages and placements of calls, and what moves tensors how."""
    return [
        {key: (n.stage, str(n.signature)) for key, n in plan.nodes.items()},
        {box.key: [str(step) for step in box.lowering] for box in plan.boxings},
        [(t.name, str(t.source), str(t.target)) for t in plan.transfers],
    ]


def test_at_its_own_size_the_parts_are_the_plan_s(plan: Plan) -> None:
    found = scale(plan, sizes=[BATCH])
    for part, seconds in plan.predicted.seconds_by_part.items():
        assert found.parts[part] == pytest.approx((seconds,))
    assert found.own == BATCH


def test_the_batch_is_followed_from_stage_to_stage(plan: Plan) -> None:
    found = find_batch(plan)
    assert found.size == BATCH // plan.microbatches
    for transfer in plan.transfers:
        assert (Ref(f"{transfer.name} at stage {transfer.receiver}"), 0) in found.dims
