from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_plan import replaced, small_plan
from torch import nn

import partita as pt
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.difference import Change, Price
from partita.compiler.plan.difference_table import print_difference
from partita.compiler.plan.document import (
    CollectiveTotal,
    Node,
    PlanOptions,
    Predicted,
)
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.sent import sent_bytes
from partita.compiler.plan.stage_records import Schedule

DATA = small_plan().to_dict()


def test_a_plan_differs_in_nothing_from_itself(plan: Plan) -> None:
    found = plan.diff(plan)
    assert found.is_empty
    assert all(price.change == 0 for price in (*found.seconds, *found.bytes))
    assert print_difference(found).startswith("the plans decide alike\n\nseconds")


def test_what_moved_is_named_with_both_placements(plan: Plan) -> None:
    own = plan.parameters["up.weight"]
    held = replace(own.placements, storage=Placement.parse("(S(0), B)"), gradient=None)
    moved = replace(
        plan, parameters={**plan.parameters, "up.weight": replace(own, placements=held)}
    )
    assert plan.diff(moved).parameters == (
        Change("up.weight", "storage", "(B, S(1))", "(S(0), B)"),
        Change("up.weight", "gradient", "(B, S(1))", None),
    )
    assert not plan.diff(moved).is_empty


def test_nodes_are_compared_by_key(plan: Plan) -> None:
    node = plan.nodes["relu/0"]
    whole = replace(
        node, signature=replace(node.signature, results=(Placement.parse("(B, B)"),))
    )
    nodes: dict[str, Node] = {**plan.nodes, "relu/0": whole, "gelu/0": node}
    del nodes["max.dim/0"]
    found = {
        change.name: change for change in plan.diff(replace(plan, nodes=nodes)).nodes
    }
    assert set(found) == {"relu/0", "gelu/0", "max.dim/0"}
    assert found["gelu/0"].before is None
    assert found["max.dim/0"].after is None
    assert found["relu/0"].before == str(node.signature)


def test_the_price_is_by_part(plan: Plan) -> None:
    other = replace(
        plan,
        predicted=Predicted(40e-6, 4096, {"compute": 30e-6, "bubble": 10e-6}, {}),
        collectives=(CollectiveTotal("all_reduce", "dp", 4, 192),),
    )
    found = plan.diff(other)
    assert found.seconds == (
        Price("step", 36e-6, 40e-6),
        Price("compute", 16e-6, 30e-6),
        Price("communication", 20e-6, 0),
        Price("bubble", 0, 10e-6),
    )
    assert found.bytes[:2] == (
        Price("memory", 2048, 4096),
        Price("on the wire", 256, 256),
    )
    assert found.collectives == (
        Change("all_reduce dp", "", "x3, 192 bytes", "x4, 192 bytes"),
        Change("all_reduce tp", "", "x1, 64 bytes", None),
    )
    text = print_difference(found)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "step 36 us 40 us +4 us (+11.1%)" in lines
    assert "memory 2 KiB 4 KiB +2 KiB (+100.0%)" in lines


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"fusion": (("h.0/a", "h.0/b"), ("h.1/a", "h.1/b"))}, "h.*/a fused - h.*/a,"),
        ({"joined": (("up/mm/0", "x/mm/0"),)}, "up/mm/0 joined - up/mm/0, x/mm/0"),
        (
            {"buckets": (("mean/0 -> (B, B)", "down/mm/0 -> (S(0), B)"),)},
            "mean/0 -> (B, B) sent together - mean/0 -> (B, B), down/mm/0 -> (S(0), B)",
        ),
        ({"ahead": {"x": "relu/0"}}, "x begun before - relu/0"),
        ({"late": {"x": "relu/0"}}, "x waited for before - relu/0"),
        ({"recompute": ("x",)}, "x made again - for the backward"),
        ({"options": PlanOptions(optimizer="sgd")}, "optimizer adamw sgd"),
    ],
)
def test_what_is_done_otherwise_is_no_alike(
    plan: Plan, changed: dict[str, Any], told: str
) -> None:
    found = plan.diff(replace(plan, **changed))
    assert not found.is_empty
    lines = [" ".join(line.split()) for line in str(found).splitlines()]
    assert any(line.startswith(told) for line in lines)
    assert found.to_dict()["plan"] or found.to_dict()["groups"]


def test_rows_of_one_name_are_shown_from_where_they_part(plan: Plan) -> None:
    one, other = (
        replace(plan, schedule=Schedule("gpipe", rows=("0F0", row)))
        for row in ("1F0 1F1 1B0 1B1 1UPDATE 1F9", "1F0 1B0 1F1 1B1 1UPDATE 1F9")
    )
    assert one.diff(other).plan == (
        Change("row 1", "from action 1", "1F1 1B0 1B1 1UPDATE", "1B0 1F1 1B1 1UPDATE"),
    )


def test_other_meshes_can_be_compared(plan: Plan) -> None:
    found = plan.diff(Plan.from_dict(replaced(DATA, ["model", "class"], "Other")))
    assert found.plan == (Change("model", "", "model.TwoLayers 5f0c", "Other 5f0c"),)


def test_what_a_rank_sends_is_that_of_its_boxings(plan: Plan) -> None:
    assert sent_bytes(plan) == sum(boxing.bytes for boxing in plan.boxings) == 256


def test_names_cannot_steer_the_terminal(plan: Plan) -> None:
    nodes = {**plan.nodes, "\x1b[2J\n": plan.nodes["relu/0"]}
    text = print_difference(plan.diff(replace(plan, nodes=nodes)))
    assert text.replace("\n", "").isprintable()


class Renamed(nn.Module):
    """Layers under a name, with an op behind them or without."""

    def __init__(self, name: str, behind: nn.Module) -> None:
        super().__init__()
        layers = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.add_module(name, layers)
        self.name = name
        self.behind = behind
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layers = self.get_submodule(self.name)
        return self.head(self.behind(layers(x))).square().mean()


def planned(name: str, behind: nn.Module) -> Plan:
    """Return a plan of data parallel."""
    options = pt.Options(pins={"x": "S(0)"})
    model = Renamed(name, behind)
    return pt.plan(model, torch.ones(4, 8), mesh="dp=2", options=options)


def test_what_only_has_another_name_has_not_moved() -> None:
    found = planned("old", nn.Identity()).diff(planned("new", nn.Identity()))
    assert [change.name for change in found.plan] == ["model"]
    assert (found.parameters, found.nodes, found.collectives) == ((), (), ())
    assert found.renamed["new.0/addmm/0"] == "old.0/addmm/0"
    assert found.renamed["parameter:new.2.bias"] == "parameter:old.2.bias"
    lines = {" ".join(line.split()) for line in str(found).splitlines()}
    assert "new.*/addmm/0 old.*/addmm/0 x2" in lines


def test_an_op_that_is_new_is_all_that_differs_beside_names() -> None:
    found = planned("old", nn.Identity()).diff(planned("new", nn.ReLU()))
    assert {change.name.rpartition("/")[0] for change in found.nodes} == {
        "behind/relu",
        "behind/relu/0~grad/threshold_backward",
    }
    assert all(change.before is None for change in found.nodes)
    assert not found.parameters
