"""What a plan says of an edited model's parts is found again under their new names."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tests.models.captured import captured
from tests.slow import slow
from torch import nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.ir.program import info
from partita.compiler.plan.counterparts import called_as
from partita.compiler.plan.document import Document


class Wrapped(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.inner(*args, **kwargs)


class Scored(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


X = torch.randn(4, 8)


@cache
def plan_of(*layers: nn.Module, **pins: str) -> pt.Plan:
    options = pt.Options(pins=pins, microbatches=1)
    return pt.plan(Scored(*layers), X, mesh="tp=2", options=options)


def renamed(document: Document, model: nn.Module) -> tuple[Document, dict[str, str]]:
    return called_as(document, capture(model, (X,), {}).program)


def test_a_plan_of_the_same_model_stays_what_it_is() -> None:
    layers = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)
    plan = plan_of(*layers)
    found, others = renamed(plan, Scored(*layers))
    assert found is plan
    assert others == {}


class Twice(nn.Module):
    def __init__(self, before: bool) -> None:
        super().__init__()
        self.a, self.b, self.before = nn.Linear(8, 12), nn.Linear(12, 8), before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(x) if self.before else x
        return torch.relu(self.b(torch.relu(self.a(x)))).sum()


def test_an_op_before_others_of_its_kind_takes_nothing_over() -> None:
    plan = pt.plan(Twice(False), X, mesh="tp=2")
    _, others = renamed(plan, Twice(True))
    assert others["relu/0"] == "relu/1"
    assert others["relu/1"] == "relu/2"
    backward = "~grad/threshold_backward/0"
    assert others[f"relu/0{backward}"] == f"relu/1{backward}"


def test_what_is_gone_is_told_from_what_has_its_name_now() -> None:
    plan = pt.plan(Twice(True), X, mesh="tp=2")
    found, others = renamed(plan, Twice(False))
    assert others["relu/1"] == "relu/0"
    assert "relu/0" not in others
    assert found.nodes["relu/0 (before)"].signature == plan.nodes["relu/0"].signature
    assert found.nodes["relu/0"].operands == plan.nodes["relu/1"].operands


def test_no_two_things_get_one_name() -> None:
    model, args, kwargs = captured("bert")[0]
    plan = pt.plan(model, *args, mesh="tp=2", **kwargs)
    for name in ("mlp", "resnet", "gpt2"):
        found, _ = called_as(plan, captured(name)[1].program)
        assert len(found.nodes) == len(plan.nodes)
        found.validate()


def test_layers_moved_by_one_that_is_new_keep_what_is_theirs() -> None:
    plan = plan_of(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    edited = Scored(nn.LayerNorm(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    found, others = renamed(plan, edited)
    assert others["parameter:layers.0.weight"] == "parameter:layers.1.weight"
    assert others["layers.2/addmm/0"] == "layers.3/addmm/0"
    own, its = plan.parameters["layers.2.weight"], found.parameters["layers.3.weight"]
    assert own.placements == its.placements


@pytest.mark.parametrize("name", ["gpt2", *map(slow, ("bert", "encoder", "resnet"))])
def test_a_model_wrapped_in_another_is_the_same_all_over(name: str) -> None:
    (model, args, kwargs), known_as = captured(name)
    program = known_as.program
    options = pt.Options(microbatches=1, recompute=("*",))
    plan = pt.plan(model, *args, mesh="tp=2", options=options, **kwargs)
    wrapped = capture(Wrapped(model), args, kwargs).program
    found, others = called_as(plan, wrapped)
    known = {info(node).key for node in wrapped.nodes()}
    assert known <= {*found.nodes, *found.expanded}
    assert len(others) > len(list(program.calls())) // 2
    assert set(found.parameters) == {f"inner.{key}" for key in plan.parameters}
    assert len(found.nodes) == len(plan.nodes)
    assert {found.nodes[key].op for key in found.recompute if key in found.nodes} == {
        plan.nodes[key].op for key in plan.recompute if key in plan.nodes
    }
