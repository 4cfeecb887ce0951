"""Plans to draw."""

from __future__ import annotations

import pytest
import torch

import partita as pt
from partita.compiler.plan.plan import Plan

SPLIT = {"0.weight": "on dp"}

WAYS = {"one stage": ("dp=2", 1, SPLIT), "two stages": ("pp=2,dp=2", 4, SPLIT)}


def made(mesh: str, microbatches: int, pins: dict[str, str]) -> Plan:
    """Return a plan of a small chain that splits and re-places something."""
    torch.manual_seed(0)
    layers = (torch.nn.Linear(16, 16) for _ in range(4))
    options = pt.Options(
        microbatches=microbatches,
        pins=pins,
        loss=lambda out: out.square().flatten(1).mean(1).mean(),
    )
    model = torch.nn.Sequential(*layers)
    return pt.plan(model, torch.randn(8, 16), mesh=mesh, options=options)


@pytest.fixture(scope="package", params=WAYS)
def any_plan(request: pytest.FixtureRequest) -> Plan:
    """Return a plan of one stage, and one of two."""
    return made(*WAYS[request.param])


@pytest.fixture(scope="package")
def plan() -> Plan:
    """Return a plan of two by two ranks that sends something along each axis."""
    pins = {
        "0.weight": "(B, S(0)) use=(B, S(0))",
        "1.weight": "(B, S(1)) use=(B, S(1))",
    }
    return made("dp=2,tp=2", 1, pins | {"input": "(S(0), B)"})
