"""What pins leave to choose from, and what it costs to break them."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.search.hand_made import planner
from tests.models import zoo
from tests.models.searched import searched
from torch import nn

import partita as pt
from partita.compiler.errors import BadOptions, NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.fold import Fold
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice
from partita.compiler.search.solver import solve
from partita.one_mesh.planner import Planner

TP = Mesh(tp=2)
CUBE = Mesh(pod=2, dp=2, tp=2)


def mlp(pins: dict[str, str], mesh: Mesh = TP) -> Planner:
    model, args, _ = zoo.mlp()
    return planner(model, *args, mesh=mesh, pins=pins)


def choices(posed: Posed, key: str) -> tuple[Choice, ...]:
    (found,) = (node for node in posed.problem.nodes if node.key == key)
    return found.choices


def broken(posed: Posed, key: str, operand: int | None = None) -> dict[str, float]:
    """Return what each placement that a node makes or takes costs in broken pins."""
    return {
        str(
            choice.signature.results[0]
            if operand is None
            else choice.signature.operands[operand]
        ): choice.broken_s
        for choice in choices(posed, key)
    }


def storage(plan: pt.Plan) -> dict[str, str]:
    return {name: str(p.placements.storage) for name, p in plan.parameters.items()}


def test_patterns_fix_every_parameter_that_they_name() -> None:
    plan = searched(mlp({"*.weight": "S(0)", "up.weight": "B", "*.bias": "B"}))
    assert storage(plan) == {
        "up.weight": "(B,)",
        "up.bias": "(B,)",
        "down.weight": "(S(0),)",
        "down.bias": "(B,)",
    }
    assert dict(plan.options.pins) == {
        "*.weight": "S(0)",
        "up.weight": "B",
        "*.bias": "B",
    }


def test_scope_leaves_the_dim_to_the_search() -> None:
    posed = mlp({"*.weight": "on tp"}).posed
    for key in ("parameter:up.weight", "parameter:down.weight"):
        assert set(broken(posed, key)) == {"(S(0),)", "(S(1),)"}
    assert "(B,)" in broken(posed, "parameter:up.bias")
    posed = mlp({"up/addmm/*": "on tp"}).posed
    assert set(broken(posed, "up/addmm/0")) == {"(S(0),)", "(S(1),)"}
    posed = mlp({"x": "on tp"}).posed
    assert set(broken(posed, "input:x")) == {"(S(0),)", "(S(1),)"}


def test_scope_leaves_what_has_no_dim_to_split_alone() -> None:
    """A batch norm counts batches in a number: a module is meant but for that."""

    class Normed(nn.BatchNorm1d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input).exp().mean()

    x, counted = torch.randn(16, 8), "num_batches_tracked"
    plan = searched(planner(Normed(8), x, mesh=TP, pins={"*": "on tp"}))
    assert str(plan.buffers["running_mean"].placement) == "(S(0),)"
    assert str(plan.buffers[counted].placement) == "(B,)"
    assert "pinned to on tp" in plan.explain("running_mean")
    assert "pinned" not in plan.explain(counted)
    with pytest.raises(BadOptions, match="it has no dim to split on tp"):
        searched(planner(Normed(8), x, mesh=TP, pins={counted: "on tp"}))


def test_scope_holds_where_axes_are_searched_one_after_another() -> None:
    plan = searched(mlp({"*.weight": "on tp, pod"}, CUBE))
    for name in ("up.weight", "down.weight"):
        placement = plan.parameters[name].placements.storage
        assert str(placement.shardings[0]).startswith("S(")
        assert str(placement.shardings[2]).startswith("S(")


def test_breaking_a_soft_pin_costs_its_price() -> None:
    free, posed = mlp({}).posed, mlp({"up.weight": "S(1) ~ 1ms"}).posed
    key = "parameter:up.weight"
    assert broken(posed, key) == {"(S(1),)": 0.0, "(B,)": 1e-3, "(S(0),)": 1e-3}
    seconds = {(c.signature, c.held): c.seconds for c in choices(free, key)}
    for choice in choices(posed, key):
        time_s = choice.seconds - choice.broken_s
        assert time_s == pytest.approx(seconds[choice.signature, choice.held])


def updated(posed: Posed, key: str) -> dict[str, float]:
    """Return how a parameter may be updated, and what that costs in broken pins."""
    return {
        f"{c.signature.results[0]} by {c.held.optimizer}": c.broken_s
        for c in choices(posed, key)
        if c.held is not None
    }


def test_a_pinned_storage_is_updated_as_it_is_stored() -> None:
    key = "parameter:up.weight"
    assert updated(mlp({"up.weight": "B"}).posed, key) == {"(B,) by (B,)": 0.0}
    free = updated(mlp({}).posed, key)
    assert len(free) == 4
    assert free.keys() > {"(B,) by (B,)", "(S(0),) by (S(0),)", "(S(1),) by (S(1),)"}
    assert updated(mlp({"up.weight": "use=B"}).posed, key) == free


def test_an_optimizer_may_be_asked_for_at_a_price() -> None:
    key, asked = "parameter:up.weight", "storage=B; gradient=S(1); optimizer=S(1)"
    found = updated(mlp({"up.weight": f"{asked} ~ 1ms"}).posed, key)
    assert found.pop("(B,) by (S(1),)") == 0.0
    assert "(B,) by (B,)" in found
    assert set(found.values()) == {1e-3}
    plan = searched(mlp({"up.weight": f"{asked} ~ 1s"}))
    held = plan.parameters["up.weight"].placements
    assert str(held.storage) == "(B,)"
    assert str(held.gradient) == str(held.optimizer) == "(S(1),)"


def test_ops_pay_for_a_use_that_is_asked_otherwise() -> None:
    posed = mlp({"up.bias": "use=B ~ 2us"}).posed
    assert broken(posed, "up/addmm/0", 0)["(B,)"] == 0.0
    assert broken(posed, "up/addmm/0", 0)["(S(0),)"] == pytest.approx(2e-6)
    assert set(broken(posed, "parameter:up.bias").values()) == {0.0}


def test_what_uses_the_view_of_a_parameter_pays_once() -> None:
    posed = mlp({"up.weight": "use=B ~ 2us"}).posed
    assert set(broken(posed, "up/t/0").values()) == {0.0}
    assert broken(posed, "up/addmm/0", 2)["(S(0),)"] == pytest.approx(2e-6)


def test_a_use_holds_through_views_as_they_make_it() -> None:
    posed = mlp({"up.weight": "use=S(0)"}).posed
    assert broken(posed, "up/t/0", 0) == {"(S(0),)": 0.0}
    assert broken(posed, "up/addmm/0", 2) == {"(S(1),)": 0.0}
    assert "(B,)" in broken(posed, "down/addmm/0", 2)
    posed = mlp({"up.weight": "use=S(0) ~ 2us"}).posed
    assert broken(posed, "up/t/0", 0)["(S(0),)"] == 0.0
    assert broken(posed, "up/t/0", 0)["(B,)"] == pytest.approx(2e-6)
    assert broken(posed, "up/addmm/0", 2)["(S(1),)"] == 0.0
    assert broken(posed, "up/addmm/0", 2)["(B,)"] == pytest.approx(2e-6)


def test_soft_pin_is_followed_where_its_price_exceeds_what_it_costs() -> None:
    free = searched(mlp({}))
    other = next(p for p in ("(S(0),)", "(S(1),)") if p != storage(free)["up.weight"])
    cheap = searched(mlp({"up.weight": f"{other} ~ 0.001us"}))
    assert storage(cheap) == storage(free)
    dear = searched(mlp({"up.weight": f"{other} ~ 1s"}))
    hard = searched(mlp({"up.weight": other}))
    assert storage(dear)["up.weight"] == other
    assert dear.predicted.seconds == pytest.approx(hard.predicted.seconds)


def test_prices_are_no_part_of_what_is_predicted() -> None:
    planner = mlp({"up/addmm/0": "P(max) ~ 1s", "*.weight": "use=B ~ 1us"})
    solved = solve(planner.posed.problem, 10.0)
    plan = searched(planner)
    total = sum(node.seconds for node in plan.nodes.values())
    total += sum(boxing.seconds for boxing in plan.boxings)
    assert solved.seconds > 1.0
    assert plan.predicted.seconds == pytest.approx(total)
    assert plan.predicted.seconds < 1.0


def test_alternatives_are_priced_by_time_alone() -> None:
    free = searched(mlp({}))
    kept = storage(free)["up.weight"]
    soft = searched(mlp({"up.weight": f"{kept} ~ 1s"}))
    key = "parameter:up.weight"
    others = [
        {str(other.signature): other.seconds for other in plan.nodes[key].alternatives}
        for plan in (soft, free)
    ]
    assert others[0] == pytest.approx(others[1], abs=1e-12)


def test_layers_of_which_one_is_pinned_do_not_choose_alike() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    free = planner(model, torch.ones(4, 8), mesh=TP, train=False).posed
    pins = {"3/addmm/0": "S(1) ~ 1ms"}
    posed = planner(model, torch.ones(4, 8), mesh=TP, pins=pins, train=False).posed
    at = next(i for i, n in enumerate(posed.problem.nodes) if n.key == "3/addmm/0")
    before, after = Fold.of(free.problem).class_of, Fold.of(posed.problem).class_of
    assert before.count(before[at]) > 1
    assert after.count(after[at]) == 1


@pytest.mark.parametrize(
    ("pins", "error", "message"),
    [
        (
            {"up.*": "S(1)"},
            BadOptions,
            "pin 'up.*' names 'up.bias' too: pin 'up.bias' is illegal for f32[64]: "
            "placement (S(1),): S(1) names dim 1, but shape [64] has 1 dims; give that "
            "a pin of its own, or choose a closer pattern",
        ),
        (
            {"*.weight": "(S(0), B)"},
            BadOptions,
            "pin '*.weight': placement (S(0), B) has 2 entries, mesh tp=2 has 1 axes; "
            "give one entry per axis",
        ),
        (
            {"*.weight": "on cp"},
            BadOptions,
            "pin '*.weight': mesh tp=2 has no axis 'cp'",
        ),
        (
            {"x": "optimizer=B"},
            BadOptions,
            "pin 'x' fixes a gradient or optimizer, but x is no parameter that is "
            "trained",
        ),
        (
            {"up.bias": "S(0) use=P(max)"},
            NoSolution,
            "pin 'up.bias': up/addmm/0 (aten.addmm.default, tests/models/zoo.py:",
        ),
    ],
)
def test_pin_that_cannot_hold_is_named(
    pins: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        searched(mlp(pins))
    assert str(caught.value).startswith(message)
