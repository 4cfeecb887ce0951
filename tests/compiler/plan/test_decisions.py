"""What ranks compare of their plans: all that is decided, nothing that is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.models.turned import plain, turned

import partita as pt
from partita.compiler.plan.decisions import digests
from partita.compiler.plan.document import Predicted


def unlike(one: pt.Plan, other: pt.Plan) -> list[str]:
    first, second = digests(one), digests(other)
    return [name for name in first if first[name] != second[name]]


def test_what_is_predicted_and_how_it_was_found_is_left_out() -> None:
    plan = plain("zero3")
    search = replace(plan.search, seconds=1.0, status="another")
    nodes = {key: replace(node, seconds=1.0) for key, node in plan.nodes.items()}
    other = replace(plan, search=search, nodes=nodes, predicted=Predicted(1.0, 1))
    assert unlike(plan, other) == []


def test_plans_that_were_found_otherwise_are_told_apart() -> None:
    assert unlike(plain("zero3"), plain("zero2")) == ["nodes", "parameters", "boxings"]
    assert unlike(plain("zero3"), turned("zero3")) == ["ahead", "late"]


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("mesh", {"stages": ()}),
        ("schedule", {"microbatches": 2}),
        ("outputs", {"outputs": ()}),
        ("recompute", {"recompute": ("one",)}),
        ("fusion", {"fusion": (("one", "two"),)}),
        ("joined", {"joined": (("one", "two"),)}),
        ("buckets", {"buckets": (("one", "two"),)}),
        ("late", {"late": {"one": "two"}}),
        ("order", {"order": ()}),
        ("parameters", {"parameters": {}}),
        ("boxings", {"boxings": ()}),
    ],
)
def test_each_decision_is_compared(name: str, changed: dict[str, Any]) -> None:
    plan = plain("zero3")
    found = unlike(plan, replace(plan, **changed))
    assert name in found
    assert set(found) <= {name, "stages"}
