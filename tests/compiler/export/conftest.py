"""The small plan by hand, one with hostile names, and a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compiler.export.hostile import hostile_plan
from tests.models.pipelines import tied

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
    """Return a plan of two stages on two ranks each, which share an embedding."""
    model, args, kwargs = tied(2)
    options = pt.Options(microbatches=4, schedule="1f1b")
    return pt.plan(model, *args, mesh="pp=2,dp=2", options=options, **kwargs)
