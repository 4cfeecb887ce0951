"""The small plan by hand, one with hostile names, and a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.compiler.export.hostile import hostile_plan
from tests.e2e.test_pipelines import drawn, search_of
from tests.models.pipelines import tied

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.plan.plan import Plan
from partita.microbatched import in_microbatches

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
    captured = in_microbatches(capture(model, args, kwargs), 4, pt.default_rules)
    search = search_of(captured, "pp=2,dp=2", microbatches=4, schedule="1f1b")
    return drawn(search, 1)
