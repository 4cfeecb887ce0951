"""Plans under a memory limit: they fit, compute what the model computes, cost more."""

from __future__ import annotations

import pytest
from tests.models.zoo import ZOO

from partita.compiler.capture.capture import capture
from partita.compiler.errors import NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.options import Options
from partita.planning import Planner
from partita.verification import Verifier


def _check(name: str, mesh: Mesh, parts: tuple[float, ...]) -> None:
    model, args, kwargs = ZOO[name]()
    captured = capture(model, args, kwargs)
    verifier = Verifier.of(model, args, kwargs, draws=captured.program.draws)
    free = Planner(captured, name, mesh, Options()).search()
    slowest = free.predicted.seconds
    for part in parts:
        limit = int(part * free.predicted.bytes)
        plan = Planner(captured, name, mesh, Options(memory=limit)).search()
        assert plan.predicted.bytes <= limit
        assert plan.options.memory_bytes == limit
        assert plan.predicted.seconds >= slowest * (1 - 1e-9), "less room costs time"
        assert plan.search.status == "not compared with all"
        report = verifier.verify_captured(captured, plan)
        assert report.ok, str(report)
        slowest = plan.predicted.seconds


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_a_plan_fits_and_is_equal(name: str) -> None:
    _check(name, Mesh(tp=2), (0.75, 0.55))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [Mesh(tp=4), Mesh(dp=2, tp=2)], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "resnet"])
def test_plans_fit_on_more_ranks(name: str, mesh: Mesh) -> None:
    _check(name, mesh, (0.8, 0.6, 0.5))


def test_room_for_all_changes_nothing() -> None:
    model, args, kwargs = ZOO["mlp"]()
    captured = capture(model, args, kwargs)
    free = Planner(captured, "mlp", Mesh(tp=2), Options()).search()
    limit = free.predicted.bytes
    plan = Planner(captured, "mlp", Mesh(tp=2), Options(memory=limit)).search()
    assert plan.nodes == free.nodes
    assert plan.search.status == "optimal"


def test_a_limit_below_all_plans_says_the_least_that_was_found() -> None:
    model, args, kwargs = ZOO["mlp"]()
    captured = capture(model, args, kwargs)
    options = Options(memory=1000)
    with pytest.raises(NoSolution, match=r"limit is 1000 B .* needs less than \d"):
        Planner(captured, "mlp", Mesh(tp=2), options).search()
