"""Meshes of three axes: searched in steps, legal, pinned, and equal to the model."""

from __future__ import annotations

import pytest
import torch
from tests.models import zoo
from tests.models.searched import searched
from torch import nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.errors import BadOptions
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.search.by_axes import steps_of
from partita.one_mesh.planner import Planner
from partita.verifying.verification import Verifier

CUBE = Mesh(dp=2, cp=2, tp=2)


def planner(mesh: Mesh, pins: dict[str, str] | None = None) -> Planner:
    model, args, kwargs = zoo.mlp()
    options = pt.Options(hardware="cpu-gloo-free", pins=pins or {})
    return Planner(capture(model, args, kwargs), "mlp", mesh, options)


def assert_equal(plan: Plan) -> None:
    model, args, kwargs = zoo.mlp()
    captured = capture(model, args, kwargs)
    report = Verifier.of(model, args, kwargs).verify_captured(captured, plan)
    assert report.ok, str(report)


def test_two_axes_are_searched_at_once() -> None:
    assert steps_of(Mesh(tp=4)) == [(0,)]
    assert steps_of(Mesh(a=1)) == [()]
    assert steps_of(Mesh(a=2, b=2, c=2, d=2)) == [(2, 3), (1,), (0,)]
    assert searched(planner(Mesh(dp=2, tp=2))).search.status == "optimal"


def test_every_axis_of_three_is_used_and_the_plan_says_how_it_was_found() -> None:
    plan = searched(planner(CUBE))
    assert plan.mesh == CUBE
    assert plan.split_fraction == 1.0
    assert plan.search.status == "not compared with all"
    assert plan.search.gap is None
    assert_equal(plan)


def test_random_plans_on_three_axes_are_legal_and_differ() -> None:
    plans = [planner(CUBE).random(seed) for seed in range(3)]
    for plan in plans:
        assert_equal(plan)
    assert len({str(plan.nodes) for plan in plans}) == 3


def test_pins_hold_on_every_axis() -> None:
    pin = "(S(0), B, S(1))"
    plan = searched(planner(CUBE, {"up.weight": pin, "x": "(B, S(0), B)"}))
    assert str(plan.parameters["up.weight"].placements.storage) == pin
    assert_equal(plan)


def test_a_pin_of_another_mesh_is_refused() -> None:
    with pytest.raises(BadOptions, match=r"up\.weight"):
        searched(planner(CUBE, {"up.weight": "(S(0), B)"}))


class Vocabulary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids).log_softmax(-1).square().sum()


def test_ops_taken_apart_on_one_axis_stay_so_while_another_is_searched() -> None:
    model, ids = Vocabulary(), torch.arange(8)
    pins = {"table.weight": "(B, S(0), B) use=(B, S(0), B)"}
    options = pt.Options(hardware="cpu-gloo-free", pins=pins)
    plan = pt.plan(model, ids, mesh=CUBE, options=options)
    assert "table/embedding/0" in plan.expanded
    assert pt.verify(model, ids, plan=plan).ok
