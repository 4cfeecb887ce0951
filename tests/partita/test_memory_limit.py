"""Plans under a memory limit: they fit, compute what the model computes, cost more."""

from __future__ import annotations

import pytest
import torch
from tests.models.captured import captured
from tests.models.searched import searched
from tests.models.zoo import ZOO
from tests.slow import slow
from torch import nn

from partita.compiler.cost.timeline import Category
from partita.compiler.errors import NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.decide import Found
from partita.compiler.search.holdings import find_holdings
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.solver import solve
from partita.one_mesh.planner import Planner
from partita.options import Options
from partita.planning import plan as make_plan
from partita.verifying.verification import Verifier


def check_status(plan: Plan, free: Plan) -> None:
    """Check that the plan says how far from the best it may be, and no more."""
    assert plan.search.gap is not None
    assert 0.0 <= plan.search.gap < 1.0
    bound_s = plan.predicted.seconds * (1 - plan.search.gap)
    assert bound_s >= free.predicted.seconds * (1 - 1e-6), "the limit takes nothing off"
    is_optimal = plan.search.status.startswith("optimal")
    assert is_optimal == (plan.search.gap <= 1e-6)
    assert is_optimal or plan.search.status.startswith("not shown to be optimal")
    assert "within the memory limit" in plan.search.solver
    assert free.search.memory_price == 0.0
    assert plan.search.memory_price != 0.0, "the limit binds"


def _check(name: str, mesh: Mesh, parts: tuple[float, ...]) -> None:
    (model, args, kwargs), known = captured(name)
    verifier = Verifier.of(model, args, kwargs, draws=known.program.draws)
    free = searched(Planner(known, name, mesh, Options()))
    for part in parts:
        limit = int(part * free.predicted.bytes)
        options = Options(memory=limit, time_limit=15)
        plan = searched(Planner(known, name, mesh, options))
        assert plan.predicted.bytes <= limit
        assert plan.options.memory_bytes == limit
        check_status(plan, free)
        report = verifier.verify_captured(known, plan)
        assert report.ok, str(report)


@pytest.mark.parametrize(("name", "least"), [("mlp", 0.55), slow("gpt2", 0.7)])
def test_a_plan_fits_and_is_equal(name: str, least: float) -> None:
    _check(name, Mesh(tp=2), (0.75, least))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [Mesh(tp=4), Mesh(dp=2, tp=2)], ids=str)
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "resnet"])
def test_plans_fit_on_more_ranks(name: str, mesh: Mesh) -> None:
    _check(name, mesh, (0.8, 0.6, 0.5))


def test_room_for_all_changes_nothing() -> None:
    _, known = captured("mlp")
    free = searched(Planner(known, "mlp", Mesh(tp=2), Options()))
    limit = free.predicted.bytes
    plan = searched(Planner(known, "mlp", Mesh(tp=2), Options(memory=limit)))
    assert plan.nodes == free.nodes
    assert plan.search.status == "optimal"


def test_a_limit_below_all_plans_says_the_least_that_was_found() -> None:
    _, known = captured("mlp")
    options = Options(memory=1000, time_limit=2)
    told = r"limit is 1000 B .* less than \d.*; parameters, .* take \d.* at the least"
    with pytest.raises(NoSolution, match=told):
        searched(Planner(known, "mlp", Mesh(tp=2), options))


@pytest.mark.parametrize(
    "pin",
    [
        "storage=(B); gradient=(B); optimizer=(S(0)); use=(B)",
        "storage=(S(0)); use=(B)",
        "(B)",
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_the_search_counts_state_as_the_plan_does(pin: str, count: int) -> None:
    model, args, kwargs = ZOO["mlp"]()
    pins = {name: pin for name, p in model.named_parameters() if p.ndim == 2}
    options = Options(pins=pins, microbatches=count)
    planner = Planner.of(model, args, kwargs, Mesh(dp=2), options)
    free = solve(planner.posed.problem, 60)
    held = find_holdings(planner.posed, free.choices, "adamw")
    at_start = searched(planner).memory().by_category(0)
    there = sum(one.num_bytes for one in held.holdings if one.first < 0)
    kinds = Category.GRADIENTS, Category.TEMPORARIES
    added = sum(at_start.get(kind, 0) for kind in kinds)
    assert there == at_start[Category.INPUTS] + added
    assert held.state_bytes + there == sum(at_start.values())


@pytest.mark.parametrize(
    "name", ["gpt2", pytest.param("resnet", marks=pytest.mark.slow)]
)
def test_the_seconds_of_the_search_are_those_of_the_plan(name: str) -> None:
    _, known = captured(name)
    planner = Planner(known, name, Mesh(tp=2), Options())
    free = solve(planner.posed.problem, 60)
    search = LimitedSearch(planner.posed, free, "adamw", Clock.of(3))
    top = search.run(1 << 40).keeping.peak_bytes
    found = search.run(int(0.6 * top))
    assert found.keeping.again
    result = SearchResult("", "", None, 0.0)
    decided = planner.decide(Found(found.choices, result, found.keeping.again))
    assert decided.predicted.seconds == pytest.approx(found.seconds, rel=1e-9)
    assert set(decided.recompute) <= found.keeping.again


class Two(nn.Module):
    """Two square layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.first(x))).square().mean()


def test_a_mesh_that_holds_too_much_leaves_the_others() -> None:
    model, x = Two(), torch.randn(4, 4)
    options = Options(memory=600, time_limit=1)
    with pytest.raises(NoSolution, match="limit is 600 B"):
        make_plan(model, x, mesh=Mesh(dp=16), options=options)
    plan = make_plan(model, x, devices=16, options=options)
    assert plan.mesh.ndim == 2
    assert plan.mesh.size == 16
    assert plan.predicted.bytes <= 600


def test_what_is_asked_to_be_made_again_is_compared_with_nothing() -> None:
    _, known = captured("mlp")
    options = Options(recompute=("gelu/*",))
    plan = searched(Planner(known, "mlp", Mesh(tp=2), options))
    assert plan.recompute
    assert plan.search.status == "not compared with all"
    assert plan.search.gap is None


def test_three_axes_keep_to_a_limit() -> None:
    (model, _, _), known = captured("mlp")
    cube = Mesh(dp=2, cp=2, tp=2)
    pins = {name: "(B, B, B)" for name, p in model.named_parameters() if p.ndim == 1}
    free = searched(Planner(known, "mlp", cube, Options(pins=pins)))
    limit = int(0.9 * free.predicted.bytes)
    options = Options(pins=pins, memory=limit, time_limit=3)
    plan = searched(Planner(known, "mlp", cube, options))
    assert plan.predicted.bytes <= limit
    assert plan.search.status == "not compared with all"


STORED = "storage=(S(0), S(0)); gradient=(S(0), S(0)); optimizer=(S(0), S(0))"
SPREAD = {"input:*": "(S(0), S(0))", "parameter:*": f"{STORED}; use=(B, B)"}
WHOLE = {"input:*": "(S(0), S(0))", "parameter:*": "(B, B)"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_a_refusal_names_no_more_than_what_pins_can_do_with(name: str) -> None:
    _, known = captured(name)

    def least(pins: dict[str, str]) -> int:
        options = Options(memory=1000, time_limit=60, pins=pins)
        with pytest.raises(NoSolution) as refusal:
            searched(Planner(known, name, Mesh(dp=2, tp=2), options))
        assert refusal.value.least_bytes is not None
        return refusal.value.least_bytes

    pinned = min(least(SPREAD), least(WHOLE))
    assert least({}) <= pinned
    for more in (1.02, 1.1):
        options = Options(memory=int(more * pinned), time_limit=60)
        plan = searched(Planner(known, name, Mesh(dp=2, tp=2), options))
        assert plan.predicted.bytes <= more * pinned
