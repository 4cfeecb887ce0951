"""``verify`` accepts sound plans and finds whatever is corrupt."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from math import inf

import pytest
import torch
from tests.compiler.capture import small_models as small
from tests.models import zoo
from tests.models.searched import searched
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

import partita as pt
from partita.compiler.errors import BadOptions, BadPlan, BadRule
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.sbp import Placement
from partita.compiler.rules.rule import Rule
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered
from partita.one_mesh.planner import Planner
from partita.verifying.verification import Verifier, verify

GRID, TP = pt.Mesh(dp=2, tp=2), pt.Mesh(tp=2)
at = Placement.parse


@cache
def mlp() -> tuple[Verifier, Planner]:
    model, args, kwargs = zoo.mlp()
    planner = Planner.of(model, args, kwargs, GRID, pt.Options())
    return Verifier.of(model, args, kwargs), planner


def test_searched_plan_agrees() -> None:
    verifier, planner = mlp()
    report = verifier.verify(searched(planner))
    assert report.ok
    assert report.failure == ""
    assert report.max_error == max(report.errors.values()) <= 1e-9
    names = ["loss", "up.weight", "up.bias", "down.weight", "down.bias"]
    assert sorted(report.errors) == sorted(names)
    assert all(report.own_errors[n] <= report.tolerances[n] for n in names)
    assert str(report).startswith("verify: ok: 5 tensors, largest error ")


@pytest.mark.parametrize("seed", range(3))
def test_random_plans_agree(seed: int) -> None:
    verifier, planner = mlp()
    report = verifier.verify_captured(planner.captured, planner.random(seed))
    assert report.ok, str(report)


def test_where_the_original_happens_to_round_well_it_is_called_again() -> None:
    torch.manual_seed(0)
    model, args = small.Centred(), (torch.randn(4, 3, 16, 16),)
    planner = Planner.of(model, args, {}, TP, pt.Options())
    verifier, plan = Verifier.of(model, args, {}), searched(planner)
    exact = {
        name: value.to(verifier.own.values[name].dtype)
        for name, value in verifier.double.values.items()
    }
    lucky = replace(verifier, own=replace(verifier.own, values=exact))
    report = lucky.verify(plan)
    assert report.ok, str(report)
    assert report.tolerances["down.bias"] > report.own_errors["down.bias"] > 1e-5
    assert report.tolerances["up.weight"] == 1e-5, "it rounds little, however called"
    assert not replace(lucky, others=()).verify(plan).ok


def test_facade_takes_the_model_as_it_is_called() -> None:
    model, (x, target), _ = zoo.mlp()
    plan = pt.plan(model, x, target, mesh=TP)
    assert verify(model, x, target, plan=plan).ok
    assert verify(model, target=target, x=x, plan=plan).ok
    assert all(parameter.grad is None for parameter in model.parameters())


def test_plan_made_on_meta_holds_for_the_real_model() -> None:
    with torch.device("meta"):
        meta, meta_args, _ = zoo.encoder()
    plan = pt.plan(meta, *meta_args, mesh=TP)
    model, args, _ = zoo.encoder()
    assert verify(model, *args, plan=plan).ok
    with pytest.raises(BadOptions, match="verify needs the model's values"):
        verify(meta, *meta_args, plan=plan)


def test_buffers_and_outputs_are_compared() -> None:
    model = small.Normed()
    plan = pt.plan(model, small.batch(), mesh=TP)
    report = verify(model, small.batch(), plan=plan)
    assert report.ok
    assert {"buffer:bn.running_mean", "output:y", "output:nested.1.0"} <= set(
        report.errors
    )


def test_inference_and_own_loss() -> None:
    model = nn.Linear(4, 4)
    inference = pt.Options(train=False)
    plan = pt.plan(model, small.batch(), mesh=TP, options=inference)
    report = verify(model, small.batch(), plan=plan)
    assert (report.ok, list(report.errors)) == (True, ["output:output"])
    plan = pt.plan(model, small.batch(), mesh=TP, options=pt.Options(loss=torch.sum))
    assert verify(model, small.batch(), plan=plan).ok
    loaded = pt.Plan.from_dict(plan.to_dict())
    assert verify(model, small.batch(), plan=loaded, loss=torch.sum).ok


class Namesakes(nn.Module):
    """Has a parameter and a buffer, and takes inputs of their names."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.ones(8))
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, token: Tensor, seen: Tensor) -> Tensor:
        """Return a scalar of ``token`` ``[4, 4]`` and ``seen`` ``[4, 4, 8]``."""
        self.seen += 1
        return torch.where(token.unsqueeze(-1) > 0, self.token, seen).square().mean()


@pytest.mark.parametrize("token", ["S(0)", "storage=B; optimizer=S(0)"])
def test_inputs_may_have_the_names_of_what_is_stored(token: str) -> None:
    batch = torch.randn(4, 4), torch.randn(4, 4, 8)
    pins = {"parameter:token": token, "buffer:seen": "S(0)"}
    options = pt.Options(hardware="cpu-gloo-free", pins=pins)
    plan = pt.plan(Namesakes(), *batch, mesh=pt.Mesh(tp=2), options=options)
    assert pt.verify(Namesakes(), *batch, plan=plan).ok


class Checkpointed(nn.Module):
    """Drops elements in a checkpoint, and behind it."""

    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.3)
        self._use_reentrant = use_reentrant

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        kept = checkpoint(self._hidden, hidden, use_reentrant=self._use_reentrant)
        assert isinstance(kept, Tensor)
        return self.dropout(kept).square().mean()

    def _hidden(self, x: Tensor) -> Tensor:
        return self.dropout(self.second(x).tanh())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_a_checkpoint_drops_is_dropped_alike(use_reentrant: bool) -> None:
    model, x = Checkpointed(use_reentrant), torch.randn(8, 4)
    plan = pt.plan(model, x, mesh="dp=2")
    assert pt.verify(model, x, plan=plan).ok


def test_plan_of_another_model_is_refused() -> None:
    _, planner = mlp()
    with pytest.raises(BadPlan, match="the plan was made for another model"):
        verify(zoo.Perceptron(hidden=66), *zoo.mlp()[1], plan=searched(planner))


# --- what is corrupt ----------------------------------------------------------


def data_parallel() -> pt.Plan:
    built = zoo.mlp()
    model, args, _ = built
    pins = zoo.data_parallel_pins(built, 1)
    options = pt.Options(pins=pins, bucket=0, hardware="cpu-gloo-free")
    return pt.plan(model, *args, mesh=TP, options=options)


def check_refused(plan: pt.Plan, reason: str) -> None:
    verifier, _ = mlp()
    report = verifier.verify(plan)
    assert not report.ok
    assert report.max_error == inf
    assert reason in report.failure
    assert str(report) == f"verify: FAILED: {report.failure}"


def test_corrupt_placement_is_found() -> None:
    plan = data_parallel()
    key = "gelu/0"
    moved = replace(
        plan.nodes[key].signature, operands=(at("S(1)"),), results=(at("S(1)"),)
    )
    nodes = {**plan.nodes, key: replace(plan.nodes[key], signature=moved)}
    check_refused(replace(plan, nodes=nodes), "BadPlan: plan: boxings: found none of")


def test_corrupt_signature_is_found() -> None:
    plan = data_parallel()
    key = "gelu/0"
    linear = replace(plan.nodes[key].signature, operands=(at("P"),), results=(at("P"),))
    nodes = {**plan.nodes, key: replace(plan.nodes[key], signature=linear)}
    check_refused(replace(plan, nodes=nodes), "BadPlan: plan: boxings: found none of")


def test_corrupt_lowering_is_found() -> None:
    plan = data_parallel()
    (index, boxing), *_ = [
        (i, b) for i, b in enumerate(plan.boxings) if b.lowering[0].kind == "all_reduce"
    ]
    for change in (
        {"kind": "relabel"},
        {"kind": "all_gather"},
        {"after": at("S(0)")},
        {"axis": "dp"},
    ):
        step = replace(boxing.lowering[0], **change)
        changed = replace(boxing, lowering=(step,))
        boxings = (*plan.boxings[:index], changed, *plan.boxings[index + 1 :])
        check_refused(replace(plan, boxings=boxings), f"boxings[{index}]")
    missing = replace(plan, boxings=plan.boxings[:index] + plan.boxings[index + 1 :])
    check_refused(missing, "BadPlan: plan: boxings: found none of")


def test_corrupt_output_is_found() -> None:
    plan = data_parallel()
    for index, output in enumerate(plan.outputs):
        changed = replace(output, placement=at("P"))
        outputs = (*plan.outputs[:index], changed, *plan.outputs[index + 1 :])
        verifier, _ = mlp()
        assert not verifier.verify(replace(plan, outputs=outputs)).ok


def emitted() -> tuple[list[LocalProgram], fx.Graph]:
    """Return the programs of two data-parallel ranks, and the graph of the second."""
    verifier, _ = mlp()
    plan = data_parallel()
    model, args, kwargs = verifier.model, verifier.args, verifier.kwargs
    captured = Planner.of(model, args, kwargs, TP, pt.Options()).captured
    lowered = Lowered.of(captured, plan, default_rules)
    ranks = [lowered.at(coordinates) for coordinates in TP.all_coordinates()]
    return ranks, ranks[1].graph_module.graph


REDUCE = torch.ops._c10d_functional.all_reduce.default


def test_sound_ranks_agree() -> None:
    ranks, _ = emitted()
    assert mlp()[0].verify_ranks(ranks).ok


def test_corrupt_reduction_on_every_rank_is_measured() -> None:
    ranks, _ = emitted()
    for local in ranks:
        node = local.graph_module.graph.find_nodes(op="call_function", target=REDUCE)[1]
        node.args = (node.args[0], "max", *node.args[2:])
    report = mlp()[0].verify_ranks(ranks)
    assert not report.ok
    assert report.failure == ""
    assert report.max_error > 1e-3
    assert sum(error > 1e-9 for error in report.errors.values()) == 1
    assert "verify: FAILED: 5 tensors" in str(report)


def test_collective_of_one_rank_alone_is_found() -> None:
    ranks, graph = emitted()
    node = graph.find_nodes(op="call_function", target=REDUCE)[0]
    node.args = (node.args[0], "max", *node.args[2:])
    report = mlp()[0].verify_ranks(ranks)
    assert report.failure.startswith("InvariantViolation: ")


def test_corrupt_op_is_measured() -> None:
    ranks, graph = emitted()
    (gelu,) = graph.find_nodes(op="call_function", target=torch.ops.aten.gelu.default)
    gelu.target = torch.ops.aten.relu.default
    report = mlp()[0].verify_ranks(ranks)
    assert not report.ok
    assert report.errors["loss"] > 1e-6


class Rectified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(
            torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.w).square().sum()


def test_wrong_rule_is_measured() -> None:
    rules = default_rules.with_(Rule("aten.relu.default", "* -> *", linear="0"))
    pins = {"mm/0": "P", "relu/0": "P"}
    model, x = Rectified(), small.batch()
    options = pt.Options(rules=rules, pins=pins)
    with pytest.raises(BadRule, match=r"aten\.relu"):
        pt.plan(model, x, mesh=TP, options=options)  # it is proven when it is used
    plan = searched(Planner.of(model, (x,), {}, TP, options))
    assert str(plan.nodes["relu/0"].signature) == "(P(sum),) -> (P(sum),)"
    report = Verifier.of(model, (x,), {}).verify(plan, rules)
    assert report.failure == ""
    assert not report.ok
    assert report.errors["loss"] > 1e-3
    assert report.errors["w"] > 1e-3
    # With the rules as they are, the plan is not even carried out.
    refused = Verifier.of(model, (x,), {}).verify(plan)
    assert refused.failure == (
        "BadPlan: nodes.relu/0.signature: no rule of aten.relu.default allows "
        "(P(sum),) -> (P(sum),)"
    )


class Resetting(small.Scale):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        self.count.copy_(self.count * 1.0)  # written, but with the value it had
        return (x * self.w * self.count).sum()


def test_buffer_that_keeps_its_value_is_compared_too() -> None:
    model = Resetting()
    planner = Planner.of(model, (small.batch(),), {}, TP, pt.Options())
    verifier = Verifier.of(model, (small.batch(),), {})
    plan = searched(planner)
    report = verifier.verify(plan)
    assert report.ok
    assert report.errors["buffer:count"] == 0.0
    lowered = Lowered.of(planner.captured, plan, default_rules)
    ranks = [lowered.at(coordinates) for coordinates in TP.all_coordinates()]
    for local in ranks:
        for node in local.graph_module.graph.nodes:
            if node.args[1:] == (1.0,):
                node.args = (node.args[0], 3.0)
    assert verifier.verify_ranks(ranks).errors["buffer:count"] == 2.0


class Masking(small.Scale):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        mask = x > 0
        x[:2] = 0.0
        return {"loss": (x * self.w).square().sum(), "mask": mask, "x": x.to(COMPLEX)}


COMPLEX = torch.complex64


def test_inputs_that_the_model_writes_to_and_outputs_of_any_dtype() -> None:
    model, x = Masking(), small.batch()
    plan = pt.plan(model, x, mesh=TP)
    report = verify(model, x, plan=plan)
    assert report.ok, str(report)
    assert sorted(report.errors) == ["loss", "output:mask", "output:x", "w"]
    assert torch.equal(x, small.batch())


def random_corruption(plan: pt.Plan, rng: random.Random) -> pt.Plan:
    """Return the plan with one placement in it replaced by another that it holds."""
    pool = sorted(
        {p for n in plan.nodes.values() for p in n.signature.operands}, key=str
    )
    key = rng.choice(sorted(plan.nodes))
    node = plan.nodes[key]
    operands, results = list(node.signature.operands), list(node.signature.results)
    tensors = rng.choice([t for t in (operands, results) if t])
    tensors[rng.randrange(len(tensors))] = rng.choice(pool)
    signature = replace(
        node.signature, operands=tuple(operands), results=tuple(results)
    )
    nodes = {**plan.nodes, key: replace(node, signature=signature)}
    return replace(plan, nodes=nodes)


def test_random_corruptions_are_all_found() -> None:
    verifier, planner = mlp()
    rng = random.Random(0)
    num_found = 0
    for _ in range(25):
        plan = planner.random(rng.randrange(3))
        corrupt = random_corruption(plan, rng)
        if corrupt != plan:
            num_found += 1
            assert not verifier.verify_captured(planner.captured, corrupt).ok
    assert num_found > 10
