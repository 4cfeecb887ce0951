"""A plan is carried out only on the model it was made for, step by step as it says."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.compiler.capture import small_models as small
from tests.models import zoo
from torch import Tensor, nn

from partita.compiler.capture.inputs import describe
from partita.compiler.errors import BadOptions, BadPlan
from partita.compiler.ir.boxing import is_box
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import info
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import LoweringStep
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered, capture_for, lower, lowerings_of
from partita.one_mesh.planner import Planner
from partita.options import Options
from partita.planning import plan
from partita.verifying.verification import verify

TP = Mesh(tp=2)
at = Placement.parse


@cache
def made() -> tuple[nn.Module, Plan]:
    model, args, _ = zoo.mlp()
    pins = {"x": "S(0)", "target": "S(0)", "up.weight": "S(0) use=B"}
    return model, plan(model, *args, mesh=TP, options=Options(pins=pins))


def test_model_is_captured_as_the_example_called_it() -> None:
    model, found = made()
    captured = capture_for(model, found)
    assert [info(node).key for node in captured.program.nodes()] == list(found.order)


def test_other_call_of_the_same_model_is_the_same_program() -> None:
    model, found = made()
    _, (x, target), _ = zoo.mlp()
    spec = describe(model, (), {"target": target, "x": x})
    captured = capture_for(model, found, spec)
    assert sorted(info(n).key for n in captured.program.nodes()) == sorted(found.order)


class Deeper(zoo.Perceptron):
    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(32, 32)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return super().forward(self.more(x), target)


class Scaled(zoo.Perceptron):
    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.up(x), approximate="tanh")
        return (self.down(hidden) - target).square().mean()


@pytest.mark.parametrize(
    ("model", "difference"),
    [
        (Deeper(), "only the model has 'parameter:more.weight'"),
        (
            zoo.Perceptron(hidden=66),
            "'parameter:up.weight' is f32[66, 32], in the plan f32[64, 32]",
        ),
        (Scaled(), "their constant arguments differ"),
        (
            zoo.Perceptron().double(),
            "'parameter:up.weight' is f64[64, 32], in the plan f32[64, 32]",
        ),
    ],
)
def test_plan_of_another_model_is_refused(model: nn.Module, difference: str) -> None:
    _, found = made()
    with pytest.raises(BadPlan) as caught:
        capture_for(model, found)
    message = str(caught.value)
    assert message.startswith(
        "the plan was made for another model (Perceptron, fingerprint "
        f"{found.model.fingerprint[:12]}) than this {type(model).__name__} ("
    )
    assert message.endswith(f"): {difference}; plan it again")


class TakesNothing(nn.Module):
    def forward(self) -> Tensor:
        return torch.ones(())


def test_a_model_that_is_called_otherwise_is_another() -> None:
    with pytest.raises(BadPlan) as caught:
        capture_for(TakesNothing(), made()[1])
    assert str(caught.value).startswith(
        "the plan was made for another model (Perceptron) than this TakesNothing, "
        "which cannot be called as that was: cannot capture TakesNothing: "
    )


def test_of_a_call_only_placements_may_be_edited() -> None:
    model, found = made()
    first, *_ = [key for key, node in found.nodes.items() if len(node.operands) == 2]
    node = found.nodes[first]
    one, other = node.operands
    for what, value, told in (
        ("op", "aten.add.Tensor", f"found aten.add.Tensor, wanted {node.op}, as in"),
        ("operands", (other, one), f"found {other}, {one}, wanted {one}, {other}, as"),
        ("types", (), "found none, wanted "),
    ):
        nodes = {**found.nodes, first: replace(node, **{what: value})}
        with pytest.raises(BadPlan) as caught:
            capture_for(model, replace(found, nodes=nodes))
        assert str(caught.value).startswith(f"nodes.{first}.{what}: {told}")


def test_other_batch_is_another_program() -> None:
    model, found = made()
    spec = describe(model, (torch.ones(4, 32), torch.ones(4, 32)), {})
    with pytest.raises(
        BadPlan, match=r"'input:x' is f32\[4, 32\], in the plan f32\[8, 32\]"
    ):
        capture_for(model, found, spec)


def test_own_loss_has_to_be_given_again() -> None:
    model = nn.Linear(4, 4)
    options = Options(loss=torch.sum)
    found = plan(model, small.batch(), mesh=TP, options=options)
    assert capture_for(model, found).program.outputs
    loaded = Plan.from_dict(found.to_dict())
    with pytest.raises(BadOptions) as caught:
        capture_for(model, loaded)
    assert str(caught.value) == (
        "the plan was made with Options(loss=...), which a plan cannot hold; give the "
        "same function again as loss="
    )
    assert capture_for(model, loaded, loss=torch.sum).program.outputs


def test_every_rank_has_its_program() -> None:
    model, found = made()
    captured = capture_for(model, found)
    lowered = Lowered.of(captured, found, default_rules)
    boxed = [info(n).key for n in lowered.program.calls() if is_box(n)]
    assert (
        sorted(boxed) == sorted(lowered.steps) == sorted(b.key for b in found.boxings)
    )
    for coordinates in TP.all_coordinates():
        local = lowered.at(coordinates)
        assert local.coordinates == coordinates
        assert local.outputs == captured.program.outputs


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.arange(24.0).reshape(12, 2) / 24)

    def forward(self, x: Tensor) -> Tensor:
        return (self.w @ x).square().sum()


def test_shards_of_equal_shapes_and_unequal_pieces_have_programs_apart() -> None:
    # The halves of 4|4|4 are 4|2 and 2|4, which two ranks halve again.
    pins = {"w": "storage=(S(0), S(0; 4|4|4)); use=(B, B)"}
    model, x, mesh = Rows(), torch.ones(2, 3), Mesh(dp=2, tp=2)
    found = plan(model, x, mesh=mesh, options=Options(pins=pins))
    report = verify(model, x, plan=found)
    assert report.ok, str(report)
    lowered = Lowered.of(capture_for(model, found), found, default_rules)
    upper, _, lower, _ = lowered.of_all()
    assert upper.graph_module.code != lower.graph_module.code


def test_steps_are_those_of_the_plan() -> None:
    _, found = made()
    steps = lowerings_of(found)
    for boxing in found.boxings:
        route = steps[boxing.key]
        assert [str(step.kind) for step in route] == [s.kind for s in boxing.lowering]
        assert route[0].before == boxing.source
        assert route[-1].after == boxing.target


def with_step(found: Plan, kind: str, step: LoweringStep) -> tuple[Plan, str]:
    """Return a plan with the first step of some kind replaced; and its boxing's key."""
    index = next(i for i, b in enumerate(found.boxings) if b.lowering[0].kind == kind)
    boxing = found.boxings[index]
    changed = replace(boxing, lowering=(step, *boxing.lowering[1:]))
    boxings = (*found.boxings[:index], changed, *found.boxings[index + 1 :])
    return replace(found, boxings=boxings), boxing.key


def test_step_that_is_another_is_refused() -> None:
    _, found = made()
    changed, key = with_step(
        found, "all_reduce", LoweringStep("all_gather", "tp", at("B"))
    )
    with pytest.raises(BadPlan) as caught:
        lowerings_of(changed)
    assert str(caught.value) == (
        f"boxings: {key!r} goes from (P(sum),) to (B,) on tp by all_gather; that is "
        "all_reduce"
    )


def test_step_that_does_not_exist_is_refused() -> None:
    _, found = made()
    impossible = LoweringStep("all_reduce", "tp", at("P(max)"))
    changed, key = with_step(found, "all_reduce", impossible)
    with pytest.raises(BadPlan) as caught:
        lowerings_of(changed)
    assert str(caught.value) == (
        f"boxings: {key!r} goes from (P(sum),) to (P(max),) on tp by all_reduce; there "
        "is no such step"
    )


def test_plan_that_contradicts_itself_is_refused() -> None:
    model, found = made()
    captured = capture_for(model, found)
    changed, _ = with_step(
        found, "all_gather", LoweringStep("all_to_all", "tp", at("S(1)"))
    )
    with pytest.raises(BadPlan, match=r"its steps end in \(S\(1\),\), wanted \(B,\)"):
        lower(captured, changed, default_rules)


def test_random_plans_can_be_carried_out() -> None:
    model, args, _ = zoo.mlp()
    planner = Planner.of(model, args, {}, Mesh(dp=2, tp=2), Options())
    for seed in range(5):
        lowered = Lowered.of(planner.captured, planner.random(seed), default_rules)
        assert lowered.at((1, 1)).graph_module.graph.nodes


def test_ranks_share_a_program_only_where_theirs_are_equal() -> None:
    # Of 64 rows in halves the second axis cuts the first half at 16 and not the other:
    # every rank holds 16 rows, and puts them together in another way.
    model, args, _ = zoo.mlp()
    mesh = Mesh(dp=2, tp=2)
    pins = {"up.weight": "(S(0), S(0; 16|48)) use=(B, B)"}
    found = plan(model, *args, mesh=mesh, options=Options(pins=pins))
    lowered = Lowered.of(capture_for(model, found), found, default_rules)
    shared = lowered.of_all()
    for coordinates, local in zip(mesh.all_coordinates(), shared, strict=True):
        own = lowered.at(coordinates)
        assert local.graph_module.code == own.graph_module.code
