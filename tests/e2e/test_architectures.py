"""Architectures as people train them, dropout on: plans equal the eager module.

``pytest -m slow tests/e2e/test_architectures.py`` runs all of them on three meshes; the
quick test takes a small one on two ranks.
"""

from __future__ import annotations

import pytest
from tests.e2e.verified import MESHES, assert_verified, captured
from tests.models.more_models import MORE
from tests.models.searched import searched

from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.reported import ReportKind
from partita.one_mesh.planner import Planner
from partita.options import Options

QUICK = ("dlrm",)
WITHOUT_DRAWS = {"mamba", "resnet"}
LIMIT_S = 10.0
WHOLE = 0.02
"""The most of the compute time that may be of ops whose rows offer no split."""


def _check(name: str, mesh: Mesh) -> None:
    options = Options(hardware="cpu-gloo-free", time_limit=LIMIT_S)
    found, _ = captured(name)
    assert bool(found.program.draws) == (name not in WITHOUT_DRAWS)
    planner = Planner(found, name, mesh, options)
    plan = searched(planner)
    unknown = [r.op for r in plan.reported if r.kind is not ReportKind.WHOLE]
    assert unknown == [], "every op has a row"
    compute_s = sum(node.seconds for node in plan.nodes.values() if node.role is None)
    told = {r.op: r.seconds / compute_s for r in plan.reported}
    assert sum(told.values()) <= WHOLE, told
    assert_verified(name, plan)
    assert_verified(name, planner.random(0))


@pytest.mark.parametrize("name", QUICK)
def test_architecture_on_two_ranks(name: str) -> None:
    _check(name, Mesh(tp=2))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", MORE)
def test_architecture_on_every_mesh(name: str, mesh: Mesh) -> None:
    _check(name, mesh)
