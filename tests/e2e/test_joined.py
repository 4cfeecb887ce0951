"""Products that are one compute what the model computes, on parameters side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.captured import captured
from tests.models.searched import searched
from tests.models.zoo import ZOO, tensor_parallel_pins
from tests.slow import slow
from torch.distributed.tensor import DTensor

import partita as pt
from partita.compiler.ir.joined import LEFT
from partita.compiler.ir.program import Phase, op_name
from partita.lowering import Lowered
from partita.one_mesh.planner import Planner
from partita.runtime.launch import launch
from partita.runtime.measure_memory import measure_step
from partita.verifying.verification import Verifier
from partita.whole_plans.recount import recount, with_figures

GPU = "h100-dgx"  # whose kernels read rows that lie apart as fast as others


def planned(name: str, mesh: str, **options: Any) -> pt.Plan:
    """Return a plan of tensor parallelism with products joined."""
    model, args, kwargs = ZOO[name]()
    parsed = pt.Mesh.parse(mesh)
    pins = tensor_parallel_pins(model, 1) if parsed.names == ("tp",) else {}
    asked = pt.Options(hardware=GPU, fuse=True, pins=pins, **options)
    return pt.plan(model, *args, mesh=parsed, options=asked, **kwargs)


def num_products(plan: pt.Plan, name: str) -> int:
    """Return how many products the first rank computes."""
    _, found = captured(name)
    local = Lowered.of(found, plan, pt.default_rules).at((0,))
    nodes = local.graph_module.graph.nodes
    calls = (node for node in nodes if node.op == "call_function")
    return sum(op_name(node) in LEFT for node in calls)


CASES = [("llama", "tp=2"), ("bert", "dp=2"), slow("opt", "dp=1"), slow("vit", "dp=2")]


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_joined_products_compute_what_the_model_computes(name: str, mesh: str) -> None:
    _, found = captured(name)
    plan = pt.Plan.from_dict(planned(name, mesh).to_dict())
    report = Verifier.of(*ZOO[name]()).verify_captured(found, plan)
    assert report.ok, str(report)
    saved = sum(len(keys) - 1 for keys in plan.joined)
    assert saved
    apart = num_products(replace(plan, joined=()), name)
    assert num_products(plan, name) == apart - saved


def test_those_made_again_are_joined_too() -> None:
    options = pt.Options(hardware=GPU, fuse=True, recompute=("model.layers.*",))
    _, found = captured("llama")
    plan = searched(Planner(found, "llama", pt.Mesh(dp=1), options))
    phases = [plan.nodes[keys[0]].phase for keys in plan.joined]
    assert phases.count(Phase.FORWARD) < len(phases)
    report = Verifier.of(*ZOO["llama"]()).verify_captured(found, plan)
    assert report.ok, str(report)


@pytest.mark.parametrize("options", [{}, {"recompute": ("model.layers.*",)}])
def test_the_price_is_that_of_the_decisions(options: dict[str, Any]) -> None:
    plan = planned("llama", "tp=2", **options)
    assert plan.joined
    assert not recount(plan).is_edited
    apart = with_figures(replace(plan, joined=()))
    assert plan.predicted.seconds < apart.predicted.seconds


def train(name: str, document: dict[str, Any], compilation: str) -> list[torch.Tensor]:
    """Return losses, norms and then parameters; half way these go out and in again."""
    model, args, kwargs = ZOO[name]()
    plan = pt.Plan.from_dict(document)
    program = pt.compile(model, plan, device="cpu", compilation=compilation)
    storages = {p.untyped_storage().data_ptr() for p in program.parameters()}
    assert (len(storages) < len([*program.parameters()])) == bool(plan.joined)
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3, foreach=True)
    found: list[torch.Tensor] = []
    state: dict[str, torch.Tensor] = {}
    for _ in range(2):
        for _ in range(2):
            found.append(program.step(*args, **kwargs))
            found.append(program.clip_grad_norm_(1.0))
            optimizer.step()
            optimizer.zero_grad()
        state = {k: _whole(v).clone() for k, v in program.state_dict().items()}
        with torch.no_grad():
            for parameter in program.parameters():
                parameter.fill_(1.0)
        program.load_state_dict(state)
    return [*found, *state.values()]


def _whole(x: torch.Tensor) -> torch.Tensor:
    assert isinstance(x, DTensor)
    return x.full_tensor()


def check_trained(name: str, plan: pt.Plan, num: int, compilation: str) -> None:
    """Compare training on ranks with products joined and apart."""
    assert plan.joined
    what = f"{__file__}:train"
    results = [
        launch(what, num, (name, each.to_dict(), compilation), timeout_s=200.0)
        for each in (plan, replace(plan, joined=()))
    ]
    for joined, apart in zip(*results, strict=True):
        assert len(joined) == len(apart)
        for a, b in zip(joined, apart, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.dist
@pytest.mark.parametrize(
    ("name", "mesh", "compilation"),
    [
        ("llama", "tp=2", "eager"),
        slow("bert", "dp=2", "regions"),
        slow("llama", "tp=2", "whole"),
    ],
)
def test_joined_products_train_as_products_apart_do(
    name: str, mesh: str, compilation: str
) -> None:
    check_trained(name, planned(name, mesh), 2, compilation)


@pytest.mark.dist
@pytest.mark.slow
def test_stages_of_a_pipeline_join_their_own() -> None:
    plan = planned("llama", "pp=2,dp=1", microbatches=2)
    assert {plan.nodes[keys[0]].stage for keys in plan.joined} == {0, 1}
    check_trained("llama", plan, 2, "eager")


def stream(name: str, document: dict[str, Any]) -> list[torch.Tensor]:
    """Return losses and then parameters of batches one behind another."""
    model, args, kwargs = ZOO[name]()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.SGD(program.parameters(), lr=0.5)

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    assert not args
    streamed = program.train_asynchronously([kwargs] * 4, update)
    return [streamed.losses, *(p.detach() for p in program.parameters())]


@pytest.mark.dist
@pytest.mark.slow
def test_what_is_made_again_has_the_weights_that_its_forward_had() -> None:
    again = {"schedule": "1f1b", "microbatches": 2, "recompute": ("model.layers.*",)}
    plan = replace(planned("llama", "pp=2,dp=1", **again), fusion=())
    phases = {plan.nodes[keys[0]].phase for keys in plan.joined}
    assert len(phases) > 1
    what = f"{__file__}:stream"
    results = [
        launch(what, 2, ("llama", each.to_dict()), timeout_s=200.0)
        for each in (plan, replace(plan, joined=()))
    ]
    for joined, apart in zip(*results, strict=True):
        for a, b in zip(joined, apart, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def peak_of_step(name: str, document: dict[str, Any]) -> int:
    """Return the most that this rank holds during a step."""
    model, args, kwargs = ZOO[name]()
    plan = pt.Plan.from_dict(document)
    program = pt.compile(model, plan, device="cpu", compilation="eager")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    return measure_step(program, optimizer, *args, **kwargs).peak_bytes


@pytest.mark.dist
@pytest.mark.slow
def test_the_peak_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINETO_LOG_LEVEL", "99")
    plan = planned("opt", "dp=1")
    plan = replace(plan, fusion=(), hardware=pt.load_hardware("cpu-gloo").to_dict())
    apart, joined = (replace(plan, joined=j) for j in ((), plan.joined))
    assert apart.memory().peak_bytes < joined.memory().peak_bytes
    for each in (apart, joined):
        what = f"{__file__}:peak_of_step", 1, ("opt", each.to_dict())
        measured = max(launch(*what, timeout_s=100.0))
        assert each.memory().peak_bytes == pytest.approx(measured, rel=0.01)
