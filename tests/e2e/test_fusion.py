"""Plans with fused small ops compute what the model computes, with fewer ops."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.models.captured import captured
from tests.models.searched import searched
from tests.models.zoo import ZOO
from tests.slow import slow
from torch import fx

import partita as pt
from partita.compiler.capture.capture import Captured
from partita.compiler.ir.local_program import LocalProgram
from partita.lowering import Lowered
from partita.one_mesh.planner import Planner
from partita.runtime.launch import launch
from partita.verifying.verification import Verifier

NUM_STEPS = 2


def slow_memory() -> pt.Hardware:
    """Return a machine on which nearly every group pays, small as the models are."""
    known = pt.load_hardware("cpu-gloo")
    return replace(known, device=replace(known.device, memory_bytes_per_s=1e7))


def planned(name: str, mesh: str) -> tuple[Captured, pt.Plan]:
    _, found = captured(name)
    options = pt.Options(hardware=slow_memory(), fuse=True, time_limit=20.0)
    return found, searched(Planner(found, name, pt.Mesh.parse(mesh), options))


def num_ops(local: LocalProgram) -> int:
    """Return how many calls a step makes, choices among results left out."""
    nodes = local.graph_module.graph.nodes
    calls = [n for n in nodes if n.op in ("call_function", "call_module")]
    return sum(n.target is not operator.getitem for n in calls)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [("mlp", "tp=2"), ("mlp", "tp=3"), ("gpt2", "tp=3"), slow("gpt2", "tp=2")],
)
def test_fused_plans_compute_what_the_model_computes(name: str, mesh: str) -> None:
    found, plan = planned(name, mesh)
    plan = pt.Plan.from_dict(plan.to_dict())
    assert plan.fusion
    report = Verifier.of(*ZOO[name]()).verify_captured(found, plan)
    assert report.ok, str(report)
    fused, unfused = (
        Lowered.of(found, p, pt.default_rules).at((0,))
        for p in (plan, replace(plan, fusion=()))
    )
    saved = sum(len(group) - 1 for group in plan.fusion)
    assert num_ops(fused) == num_ops(unfused) - saved
    regions = [n for n in fused.graph_module.graph.nodes if n.op == "call_module"]
    assert len(regions) == len(plan.fusion)
    assert all(isinstance(m, fx.GraphModule) for m in fused.graph_module.children())


def train(documents: list[dict[str, Any]]) -> list[list[torch.Tensor]]:
    """Return, per plan, the losses and then the parameters of a short training."""
    results: list[list[torch.Tensor]] = []
    for document in documents:
        model, args, kwargs = ZOO["mlp"]()
        program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
        optimizer = torch.optim.SGD(program.parameters(), lr=0.1)
        losses: list[torch.Tensor] = []
        for _ in range(NUM_STEPS):
            losses.append(program.step(*args, **kwargs))
            optimizer.step()
            optimizer.zero_grad()
        results.append([*losses, *(p.detach() for p in program.parameters())])
    return results


@pytest.mark.slow  # importing the compiler alone takes seconds
@pytest.mark.dist
def test_compiled_regions_train_as_single_ops_do() -> None:
    _, plan = planned("mlp", "tp=2")
    plans = [replace(plan, fusion=plan.fusion[:1]), replace(plan, fusion=())]
    for fused, unfused in launch(train, 2, ([p.to_dict() for p in plans],)):
        for a, b in zip(fused, unfused, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
