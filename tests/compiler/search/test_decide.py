"""A plan says all that was decided, and adds up to what the search found."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
import torch
from tests.compiler.capture import small_models as small
from tests.compiler.search.hand_made import machine, planner
from tests.models import zoo
from tests.models.captured import captured
from tests.models.searched import searched
from torch import nn

from partita.compiler.capture.fingerprint import fingerprint
from partita.compiler.cost.timeline import Category
from partita.compiler.errors import BadOptions
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, info
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import Ref, boxing_key
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.plan.uses import find_uses, produced
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.table import default_rules
from partita.compiler.search.decide import Found
from partita.compiler.search.draw import draw_choices
from partita.compiler.search.problem import cost_of
from partita.compiler.search.solver import solve
from partita.one_mesh.planner import Planner
from partita.options import Options
from partita.whole_plans.recount import with_memory

GRID, TP = Mesh(dp=2, tp=2), Mesh(tp=2)
at = Placement.parse


def mlp(mesh: Mesh = GRID, pins: dict[str, str] | None = None) -> Planner:
    model, args, _ = zoo.mlp()
    return planner(model, *args, mesh=mesh, pins=pins)


def test_prediction_is_the_cost_of_the_choices() -> None:
    found = mlp()
    problem = found.posed.problem
    plan = searched(found)
    seconds = cost_of(problem, solve(problem, 30.0).choices)
    assert plan.predicted.seconds == pytest.approx(seconds, rel=1e-12)
    parts = sum(plan.predicted.seconds_by_part.values())
    assert parts == pytest.approx(seconds, rel=1e-12)
    computing = sum(n.seconds for n in plan.nodes.values() if n.role is None)
    assert plan.predicted.seconds_by_part["compute"] == pytest.approx(computing)
    assert plan.search.status == "optimal"


class Normal(nn.Module):
    """A layer norm between two layers; the backward needs what it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean square."""
        return self.last(self.norm(self.first(x))).square().mean()


def test_of_what_is_taken_apart_parts_are_made_again_and_their_boxings() -> None:
    found = planner(Normal(), torch.randn(4, 8), mesh=TP)
    result = SearchResult("drawn", "drawn", None, 0.0)
    nodes = num_boxed = 0
    for seed in range(40):
        choices = draw_choices(random.Random(seed), found.posed)
        plain = found.draft(Found(choices, result))
        key = "norm/native_layer_norm/0"
        if key not in plain.expanded:
            continue
        made = plain.expanded[key].nodes
        draft = found.draft(Found(choices, result, {key}))
        assert set(draft.recompute) <= {*made}
        nodes += bool(draft.recompute)
        whole = found.posed.problem.nodes
        (index,) = (at for at, node in enumerate(whole) if node.key == key)
        placed = whole[index].choices[choices[index]].signature.results[0]
        wants = {
            whole[user].choices[choices[user]].signature.operands[place]
            for user, node in enumerate(whole)
            for place, value in enumerate(node.operands)
            if value == (index, 0)
        }
        boxed = {boxing_key(key, 0, want) for want in wants if want != placed}
        draft = found.draft(Found(choices, result, boxed))
        again = [own for own in draft.recompute if "#" in own]
        assert all(own.split("#")[0] in made for own in again)
        num_boxed += len(again)
    assert nodes
    assert num_boxed


def test_drafts_share_the_nodes_that_choose_alike_and_no_others() -> None:
    made, again = mlp(), mlp()
    result = SearchResult("drawn", "drawn", None, 0.0)
    for seed in range(6):
        choices = draw_choices(random.Random(seed), made.posed)
        draft = made.draft(Found(choices, result))
        known = made.draft(Found(choices, result))
        assert all(known.nodes[key] is node for key, node in draft.nodes.items())
        again.posed.candidates.drafted.clear()
        assert draft.nodes == again.draft(Found(choices, result)).nodes


def test_a_draft_lacks_what_it_holds_and_alternatives_and_nothing_else() -> None:
    _, known = captured("gpt2")
    made = Planner(known, "gpt2", GRID, Options(hardware=machine()))
    problem = made.posed.problem
    result = SearchResult("drawn", "drawn", None, 0.0)
    num_expanded = 0
    for choices in (
        solve(problem, 30.0).choices,
        draw_choices(random.Random(0), made.posed),
    ):
        whole = made.decide(Found(choices, result))
        draft = made.draft(Found(choices, result))
        nodes = [*draft.nodes.values(), *draft.expanded.values()]
        assert not any(node.alternatives for node in nodes)
        assert draft.predicted.bytes == 0
        assert draft.predicted.seconds == whole.predicted.seconds
        assert any(node.alternatives for node in whole.nodes.values())
        assert with_memory(made.with_alternatives(draft, choices)) == whole
        num_expanded += len(whole.expanded)
    assert num_expanded


@pytest.mark.parametrize("seed", range(4))
def test_random_plans_hold_together(seed: int) -> None:
    plan = mlp().random(seed)
    plan.validate()
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


def test_plan_names_its_model_and_machine() -> None:
    found = mlp()
    plan = searched(found)
    assert plan.model.class_name == "Perceptron"
    assert plan.model.fingerprint == fingerprint(found.captured.program)
    assert plan.mesh == GRID
    assert Hardware.from_dict(plan.hardware) == machine()
    (stage,) = plan.stages
    assert (stage.mesh, stage.ranks) == (GRID, (0, 1, 2, 3))
    assert set(stage.nodes) == set(plan.order) == set(plan.nodes)


def test_nodes_stand_as_in_the_program() -> None:
    found = mlp()
    plan = searched(found)
    keys = [info(node).key for node in found.captured.program.nodes()]
    assert sorted(plan.nodes) == sorted(keys)
    gelu = plan.nodes["gelu/0"]
    assert gelu.op == "aten.gelu.default"
    assert gelu.operands == (Ref("up/addmm/0"),)
    assert gelu.source.startswith("tests/models/zoo.py:")
    product = plan.nodes["up/addmm/0"]
    assert product.flops == 2 * 8 * 32 * 64
    assert plan.nodes["sum.dim_IntList/0"].constants == ("1=[0, 1]",)
    target = plan.nodes["input:target"]
    assert target.role is not None
    assert (target.role.kind, target.role.name) == (InputKind.INPUT, "target")


@pytest.mark.parametrize("seed", range(3))
def test_one_boxing_per_tensor_and_wanted_placement(seed: int) -> None:
    """One in each half of the step, for those that are made again."""
    plan = mlp().random(seed)
    wanted: dict[tuple[Ref, Placement], set[str]] = {}
    for use in find_uses(plan):
        if produced(plan, use.ref) != use.wanted:
            wanted.setdefault((use.ref, use.wanted), set()).add(use.consumer)
    boxings: dict[tuple[Ref, Placement], set[str]] = {}
    edges = [boxing for boxing in plan.boxings if not boxing.enters]
    for boxing in edges:
        served = boxings.setdefault((boxing.ref, boxing.target), set())
        assert not served & set(boxing.consumers)
        served |= set(boxing.consumers)
    again = [boxing for boxing in plan.boxings if boxing.key in plan.recompute]
    assert len(boxings) + len(again) == len(edges)
    assert boxings == wanted


def test_a_shared_boxing_says_for_whom_it_is() -> None:
    pins = {
        "up/addmm/0": "S(1)",
        "gelu/0": "S(0)",
        "gelu/0~grad/gelu_backward/0": "S(0)",
    }
    plan = searched(mlp(TP, pins))
    (shared,) = [b for b in plan.boxings if b.producer == "up/addmm/0"]
    assert shared.consumers == ("gelu/0", "gelu/0~grad/gelu_backward/0")
    assert shared.why == "made as (S(1),), wanted as (S(0),) by gelu/0 and 1 more"


def test_lowerings_lead_from_source_to_target() -> None:
    plan = mlp().random(5)
    assert plan.boxings
    for boxing in plan.boxings:
        assert boxing.lowering[-1].after == boxing.target
        if not boxing.enters:
            assert boxing.source == produced(plan, boxing.ref)


def test_collectives_are_counted() -> None:
    plan = mlp().random(5)
    counts: Counter[tuple[str, str]] = Counter()
    payloads: Counter[tuple[str, str]] = Counter()
    for boxing in plan.boxings:
        for step in boxing.lowering:
            if step.bytes:
                counts[step.kind, step.axis] += 1
                payloads[step.kind, step.axis] += step.payload
    assert {(c.kind, c.axis): (c.count, c.bytes) for c in plan.collectives} == {
        key: (counts[key], payloads[key]) for key in counts
    }


def test_parameters_have_their_placements() -> None:
    plan = searched(mlp(TP, {"up.weight": "S(0) use=B", "down.weight": "S(1)"}))
    up = plan.parameters["up.weight"]
    assert up.shape == (64, 32)
    assert up.placements.storage == at("S(0)")
    assert up.placements.use == at("B")
    assert up.placements.gradient == up.placements.optimizer == at("S(0)")
    assert plan.parameters["down.weight"].placements.storage == at("S(1)")


class Sum(nn.Module):
    """Two parameters with one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(4, 4))
        self.b = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ (self.a + self.b)).square().sum()


def test_one_gradient_is_completed_in_one_way() -> None:
    pins = {
        "a": "storage=(B); gradient=(S(0)); optimizer=(B)",
        "b": "storage=(B); gradient=(S(1)); optimizer=(B)",
    }
    with pytest.raises(BadOptions, match=r"'a' and 'b': they have one gradient"):
        searched(planner(Sum(), torch.randn(4, 4), mesh=TP, pins=pins))
    apart = {"a": "S(0)", "b": "S(1)"}
    plan = searched(planner(Sum(), torch.randn(4, 4), mesh=TP, pins=apart))
    assert plan.parameters["a"].placements.gradient == at("S(0)")
    assert plan.parameters["b"].placements.gradient == at("S(1)")


def test_what_is_not_trained_has_no_gradient() -> None:
    plan = searched(planner(small.Normed(), small.batch(), mesh=TP))
    frozen = plan.parameters["frozen"].placements
    assert (frozen.gradient, frozen.optimizer) == (None, None)
    assert plan.parameters["unused.weight"].placements.gradient is None
    assert plan.parameters["lin.weight"].placements.gradient is not None


def test_buffers_and_aliases() -> None:
    plan = searched(planner(small.Normed(), small.batch(), mesh=TP))
    assert plan.buffers["bn.running_mean"].mutated
    assert not plan.buffers["shift"].mutated
    ids = torch.zeros(2, 3, dtype=torch.int64)
    tied = searched(planner(small.Tied(), ids, mesh=TP))
    assert tied.parameters["table.weight"].aliases == ("head.weight",)
    assert tied.buffers["scale"].aliases == ("same_scale",)


def test_alternatives_are_few_and_dearer_than_what_was_chosen() -> None:
    plan = searched(mlp(TP))
    for node in plan.nodes.values():
        seconds = [other.seconds for other in node.alternatives]
        assert seconds == sorted(seconds)
        assert len(seconds) <= 6
        assert node.signature not in [other.signature for other in node.alternatives]
    product = plan.nodes["up/addmm/0"]
    assert product.alternatives
    assert product.alternatives[0].seconds >= 0


def test_unknown_op_is_reported() -> None:
    model, args, _ = zoo.mlp()
    few = RuleSet.of(tuple(r for r in default_rules.rows if "gelu" not in r.op))
    options = Options(rules=few, hardware=machine())
    plan = searched(Planner.of(model, args, {}, TP, options))
    assert {(r.op, r.kind.value, r.nodes) for r in plan.reported} == {
        ("aten.gelu.default", "unknown", ("gelu/0",)),
        ("aten.gelu_backward.default", "unknown", ("gelu/0~grad/gelu_backward/0",)),
    }
    assert all(reported.seconds > 0 for reported in plan.reported)
    assert 0 < plan.replicated_fraction < 1
    assert plan.nodes["gelu/0"].signature.operands == (at("B"),)
    assert searched(mlp(TP)).reported == ()


def test_memory_is_that_of_the_placements() -> None:
    whole = searched(mlp(TP, {n: "B use=B" for n in ("up.weight", "down.weight")}))
    split = searched(mlp(TP, {n: "S(0) use=B" for n in ("up.weight", "down.weight")}))
    steps = [plan.memory() for plan in (whole, split)]
    before, after = (step.by_category(len(step.moments) - 1) for step in steps)
    saved = 2 * 64 * 32 * 4 // 2
    assert before[Category.GRADIENTS] - after[Category.GRADIENTS] >= saved
    assert before[Category.OPTIMIZER] - after[Category.OPTIMIZER] >= 2 * saved
    for plan, step in zip((whole, split), steps, strict=True):
        assert plan.predicted.bytes == step.peak_bytes
        assert plan.predicted.bytes_by_part == step.by_category(step.peak)
        assert plan.predicted.bytes == sum(plan.predicted.bytes_by_part.values())
