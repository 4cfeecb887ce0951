"""The small plan by hand, one with hostile names, and a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.compiler.export.hostile import hostile_plan
from tests.models.pipelines import BATCH, WIDTH, Chain

import partita as pt
from partita.compiler.plan.plan import Plan

SAVED = Path(__file__).parents[1] / "plan" / "two_layers.json"


@pytest.fixture(scope="session")
def small() -> Plan:
    return Plan.load(SAVED)


@pytest.fixture(scope="session")
def hostile(small: Plan) -> Plan:
    return hostile_plan(small)


@pytest.fixture(scope="session")
def staged() -> Plan:
    """Return a plan of two stages on two ranks each."""
    torch.manual_seed(0)
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    options = pt.Options(microbatches=4, schedule="1f1b")
    return pt.plan(Chain(), *batch, mesh="pp=2,dp=2", options=options)
