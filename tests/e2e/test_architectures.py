"""Architectures as people train them, dropout on: plans equal the eager module.

``pytest -m slow tests/e2e/test_architectures.py`` runs all of them on three meshes; the
quick tests take a few small ones on two ranks.
"""

from __future__ import annotations

from functools import lru_cache

import pytest
from tests.models.more_models import MORE

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.reported import ReportKind
from partita.options import Options
from partita.planner import Planner
from partita.verification import Verifier

MESHES = (Mesh(tp=2), Mesh(dp=2, tp=2), Mesh(dp=2, cp=2, tp=2))
QUICK = ("unet", "dlrm", "mixtral", "deberta", "convnext")
WITHOUT_DRAWS = {"mamba", "resnet"}
LIMIT_S = 10.0
WHOLE = 0.02
"""The most of the compute time that may be of ops whose rows offer no split."""


@lru_cache(maxsize=1)
def _captured(name: str) -> tuple[Captured, Verifier]:
    model, args, kwargs = MORE[name]()
    captured = capture(model, args, kwargs)
    draws = captured.program.draws
    return captured, Verifier.of(model, args, kwargs, draws=draws)


def _assert_verified(name: str, plan: Plan) -> None:
    captured, verifier = _captured(name)
    report = verifier.verify_captured(captured, plan)
    assert report.ok, str(report)
    assert report.max_error <= 1e-9
    assert set(report.errors) >= set(verifier.double.values)


def _check(name: str, mesh: Mesh) -> None:
    options = Options(hardware="cpu-gloo-free", time_limit=LIMIT_S)
    captured, _ = _captured(name)
    assert bool(captured.program.draws) == (name not in WITHOUT_DRAWS)
    planner = Planner(captured, name, mesh, options)
    plan = planner.search()
    unknown = [r.op for r in plan.reported if r.kind is not ReportKind.WHOLE]
    assert unknown == [], "every op has a row"
    compute_s = sum(node.seconds for node in plan.nodes.values() if node.role is None)
    told = {r.op: r.seconds / compute_s for r in plan.reported}
    assert sum(told.values()) <= WHOLE, told
    _assert_verified(name, plan)
    _assert_verified(name, planner.random(0))


@pytest.mark.parametrize("name", QUICK)
def test_architecture_on_two_ranks(name: str) -> None:
    _check(name, Mesh(tp=2))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", MORE)
def test_architecture_on_every_mesh(name: str, mesh: Mesh) -> None:
    _check(name, mesh)
