"""Plans of one stage and of several, each searched once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.cut import drawn as cut_at_random
from tests.models.cut import search_of
from tests.models.pipelines import BATCH, PIPELINES, WIDTH, Chain
from tests.models.zoo import ZOO

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.microbatched import in_microbatches
from partita.one_mesh.planner import Planner
from partita.options import Options


def chain(mesh: str, **options: Any) -> Plan:
    """Return a plan of eight layers, one after another."""
    torch.manual_seed(0)
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    return pt.plan(Chain(), *batch, mesh=mesh, options=Options(**options))


def drawn(name: str, seed: int, **options: Any) -> Plan:
    """Return a plan of a model of the zoo whose choices are drawn at random."""
    model, args, kwargs = ZOO[name]()
    made = Options(fuse=True, **options)
    planner = Planner.of(model, args, kwargs, Mesh(dp=2, tp=2), made)
    return planner.random(seed)


@pytest.fixture(scope="session")
def whole() -> Plan:
    """Return a plan of one stage that runs the batch at once."""
    return chain("dp=2,tp=2", microbatches=1)


@pytest.fixture(scope="session")
def parts() -> Plan:
    """Return a plan of one stage in four microbatches, with gradients in pieces."""
    held = "storage=(B); gradient=(S(0)); optimizer=(S(0)); use=(B)"
    return chain("dp=2", microbatches=4, pins={"layers.*.weight": held})


@pytest.fixture(scope="session")
def fused() -> Plan:
    """Return a plan with fused groups and ops that are taken apart."""
    plan = drawn("resnet", 1, microbatches=1)
    assert plan.fusion
    assert plan.expanded
    return plan


@pytest.fixture(scope="session")
def again() -> Plan:
    """Return a plan of microbatches in which the backward makes things again."""
    plan = drawn("encoder", 1, microbatches=2)
    assert plan.recompute
    assert plan.fusion
    return plan


@pytest.fixture(scope="session")
def pipeline() -> Plan:
    """Return a plan of two stages on two ranks each, by 1F1B."""
    return chain("pp=2,dp=2", microbatches=4, schedule="1f1b")


@pytest.fixture(scope="session")
def interleaved() -> Plan:
    """Return a plan of two stages on each of two rows, gradients and state shared."""
    model, args, kwargs = PIPELINES["tied"]()
    captured = in_microbatches(capture(model, args, kwargs), 4, pt.default_rules)
    asked: dict[str, Any] = {"schedule": "interleaved", "stages_per_rank": 2}
    search = search_of(captured, "pp=2,dp=2", "cpu-gloo", **asked)
    return cut_at_random(search, seed=5)


ONE_STAGE = ("whole", "parts", "fused", "again")
STAGES = ("pipeline", "interleaved")


@pytest.fixture(params=ONE_STAGE)
def one_stage(request: pytest.FixtureRequest) -> Plan:
    """Return each plan of one stage."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=STAGES)
def stages(request: pytest.FixtureRequest) -> Plan:
    """Return each plan of several stages."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=ONE_STAGE + STAGES)
def plan(request: pytest.FixtureRequest) -> Plan:
    """Return each plan."""
    return request.getfixturevalue(request.param)
