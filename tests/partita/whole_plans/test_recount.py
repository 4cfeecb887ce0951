"""What a plan states is what its decisions take; where it was edited, they count."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.models.pipelines import BATCH, WIDTH, Chain
from tests.slow import all_slow_but

import partita as pt
from partita.compiler.plan.document import Predicted
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.uses import held_of
from partita.whole_plans.recount import (
    recount,
    whole_figures,
    with_figures,
    with_seconds,
)

SPLIT = {"layers.*.weight": "(S(0), B)", "x": "(S(0), B)"}
WHOLE = {"layers.*.weight": "(B, B)", "x": "(B, S(0))"}

ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "split": ("dp=2,tp=2", {"pins": SPLIT}),
    "parts": ("dp=2,tp=2", {"pins": SPLIT, "microbatches": 2}),
    "fused": ("dp=2,tp=2", {"fuse": True, "hardware": "h100-dgx"}),
    "again": ("dp=2,tp=2", {"recompute": ("layers.*",)}),
    "stages": ("pp=2,dp=2", {"microbatches": 2, "time_limit": 8}),
    "fused stages": (
        "pp=2",
        {"microbatches": 2, "fuse": True, "hardware": "h100-dgx", "time_limit": 8},
    ),
}


@cache
def planned(name: str) -> Plan:
    """Return a plan of a chain of layers."""
    torch.manual_seed(0)
    mesh, asked = ASKED[name]
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    return pt.plan(Chain(), *batch, mesh=mesh, options=pt.Options(**asked))


def wrong(plan: Plan) -> Plan:
    """Return a plan that has every figure of time, memory and bytes wrong."""
    nodes = {key: replace(node, seconds=7.0) for key, node in plan.nodes.items()}
    boxings = tuple(
        replace(
            boxing,
            lowering=tuple(
                replace(step, seconds=7.0, bytes=7, payload=7)
                for step in boxing.lowering
            ),
        )
        for boxing in plan.boxings
    )
    transfers = tuple(replace(one, seconds=7.0, bytes=7) for one in plan.transfers)
    stated = Predicted(7.0, 7, {"compute": 7.0}, {"parameters": 7})
    parts = {"boxings": boxings, "transfers": transfers, "predicted": stated}
    return replace(plan, nodes=nodes, **parts)


@pytest.mark.parametrize("name", all_slow_but(ASKED.keys() - {"stages"}, ASKED))
def test_a_plan_as_it_was_made_stays_as_it_is(name: str) -> None:
    plan = planned(name)
    found = recount(plan)
    assert not found.is_edited
    assert found.estimated == ()
    assert found.plan.predicted == plan.predicted
    assert found.plan.transfers == plan.transfers
    assert found.plan.boxings == plan.boxings
    assert found.plan.collectives == plan.collectives
    assert found.plan.nodes == plan.nodes
    assert found.plan.expanded == plan.expanded


@pytest.mark.parametrize("name", ASKED)
def test_figures_follow_from_the_decisions_alone(name: str) -> None:
    plan = planned(name)
    found = recount(wrong(plan))
    assert found.is_edited
    assert found.plan.transfers == plan.transfers
    assert found.plan.boxings == plan.boxings
    seconds = {key: node.seconds for key, node in plan.nodes.items()}
    counted = {key: node.seconds for key, node in found.plan.nodes.items()}
    assert counted == pytest.approx(seconds, rel=1e-9)
    predicted = found.plan.predicted
    assert predicted.seconds == pytest.approx(plan.predicted.seconds, rel=1e-9)
    parts = dict(plan.predicted.seconds_by_part)
    assert dict(predicted.seconds_by_part) == pytest.approx(parts, rel=1e-9)
    assert predicted.bytes == plan.predicted.bytes
    assert dict(predicted.bytes_by_part) == dict(plan.predicted.bytes_by_part)
    assert Plan.from_dict(found.plan.to_dict()) == found.plan


def test_an_edited_decision_takes_what_it_takes() -> None:
    # Its tensor is brought along the other axis first, which sends other bytes.
    plan = planned("split")
    boxing = next(b for b in plan.boxings if len(b.lowering) == 1 and b.bytes)
    shorter = replace(boxing.lowering[0], bytes=0, seconds=0.0)
    boxings = tuple(
        replace(b, lowering=(shorter,)) if b is boxing else b for b in plan.boxings
    )
    stated = replace(plan.predicted, seconds=plan.predicted.seconds - boxing.seconds)
    edited = Plan.from_dict(replace(plan, boxings=boxings, predicted=stated).to_dict())
    found = recount(edited)
    assert found.is_edited
    assert whole_figures(found.plan) == pytest.approx(whole_figures(plan), rel=1e-9)


def test_what_an_edit_touches_is_told_of_no_alternatives() -> None:
    plan = planned("split")
    boxing = next(b for b in plan.boxings if b.bytes)
    step = replace(boxing.lowering[0], bytes=7, seconds=7.0)
    lowering = (step, *boxing.lowering[1:])
    boxings = tuple(
        replace(b, lowering=lowering) if b is boxing else b for b in plan.boxings
    )
    touched = {boxing.producer, *boxing.consumers} & plan.nodes.keys()
    assert any(plan.nodes[key].alternatives for key in touched)
    found = recount(replace(plan, boxings=boxings)).plan
    for key, node in plan.nodes.items():
        wanted = () if key in touched else node.alternatives
        assert found.nodes[key].alternatives == wanted


def test_the_signature_that_was_taken_is_no_alternative() -> None:
    plan = planned("split")
    key = next(key for key, node in plan.nodes.items() if node.alternatives)
    node = plan.nodes[key]
    held = held_of(plan, node)
    others = (replace(node.alternatives[0], signature=node.signature, held=held),)
    nodes = {**plan.nodes, key: replace(node, alternatives=others)}
    assert recount(replace(plan, nodes=nodes)).plan.nodes[key].alternatives == ()


def test_what_has_no_rule_here_counts_as_it_is_stated() -> None:
    row = pt.Rule("aten.special_erfcx.default", "* -> *")
    rules = pt.default_rules.with_(row)

    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.erfcx(x).square().mean()

    options = pt.Options(rules=rules, train=False, pins={"x": "S(0)"})
    plan = pt.plan(Scaled(), torch.rand(4, 6), mesh="dp=2", options=options)
    (key,) = (k for k, node in plan.nodes.items() if node.op == row.op)
    assert recount(plan).estimated == (key,)
    assert not recount(plan).is_edited
    found = recount(wrong(plan), rules)
    assert found.estimated == ()
    assert found.plan.nodes[key].seconds == pytest.approx(plan.nodes[key].seconds)


@pytest.mark.parametrize("name", [name for name in ASKED if "pp" not in ASKED[name][0]])
def test_seconds_are_counted_without_what_is_held(name: str) -> None:
    plan = planned(name)
    unknown = replace(plan, predicted=Predicted(0.0, 7))
    counted = with_seconds(unknown).predicted
    assert counted.bytes == 7
    assert counted.seconds == with_figures(unknown).predicted.seconds
    assert counted.seconds == pytest.approx(plan.predicted.seconds)
