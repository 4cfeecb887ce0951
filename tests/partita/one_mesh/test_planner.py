"""A planner: several plans of one captured model on one mesh."""

from __future__ import annotations

from tests.compiler.search.hand_made import machine
from tests.models import zoo
from tests.models.searched import searched

from partita import Mesh, Options
from partita.one_mesh.planner import Planner


def test_time_limit_is_kept_and_told() -> None:
    model, args, _ = zoo.mlp()
    options = Options(time_limit=30.0, hardware=machine())
    found = searched(Planner.of(model, args, {}, Mesh(dp=2, tp=2), options))
    assert found.search.seconds < 30.0
    assert found.search.status == "optimal"
    assert found.search.gap is not None
    assert found.search.gap <= 1e-7


def test_random_plans_differ_by_seed() -> None:
    model, args, _ = zoo.mlp()
    planner = Planner.of(model, args, {}, Mesh(tp=2), Options())
    assert planner.random(1).nodes == planner.random(1).nodes
    assert planner.random(1).nodes != planner.random(2).nodes
    assert planner.random(1).search.solver == "random"
    assert not any(node.alternatives for node in planner.random(1).nodes.values())
