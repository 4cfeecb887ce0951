"""What no rule allows is told of plans that were edited, and of no others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.models.captured import captured
from tests.models.zoo import ZOO
from tests.slow import slow

import partita as pt
from partita.compiler.errors import BadPlan
from partita.compiler.plan.check_rules import check_rules, derived_by_node
from partita.compiler.rules.table import default_rules
from partita.one_mesh.planner import Planner


@cache
def planner(name: str) -> Planner:
    _, known = captured(name)
    return Planner(known, name, pt.Mesh(dp=2, tp=2), pt.Options())


@pytest.mark.parametrize("name", ["mlp", "gpt2", slow("resnet")])
def test_drawn_plans_keep_to_the_rules(name: str) -> None:
    for seed in range(3):
        check_rules(planner(name).random(seed), default_rules, "plan")


def test_an_op_that_is_not_linear_takes_no_parts_of_a_sum() -> None:
    plan = planner("mlp").random(0)
    key = next(key for key, node in plan.nodes.items() if "gelu.default" in node.op)
    node = plan.nodes[key]
    assert not derived_by_node(plan)
    part = pt.Placement.parse("(B, P(sum))")
    signature = replace(node.signature, operands=(part,), results=(part,))
    edited = replace(node, signature=signature)
    wrong = replace(plan, nodes={**plan.nodes, key: edited})
    said = rf"^file: nodes\.{key}\.signature: no rule of {node.op} allows \(B, P\(sum\)"
    with pytest.raises(BadPlan, match=said):
        check_rules(wrong, default_rules, "file")


def test_what_an_op_is_only_taken_apart_is_searched_anew() -> None:
    model, args, kwargs = ZOO["gpt2"]()
    plan = pt.plan(model, *args, mesh="dp=2,tp=2", **kwargs)
    key = "transformer.h.0.ln_1/native_layer_norm/0"
    node, wanted = plan.nodes[key], pt.Placement.parse("(B, S(2))")
    split = next(
        other.signature
        for other in node.alternatives
        if other.signature.results[0] == wanted
    )
    nodes = {**plan.nodes, key: replace(node, signature=split)}
    with pytest.raises(BadPlan) as caught:
        check_rules(replace(plan, nodes=nodes), default_rules, "file")
    assert str(caught.value).endswith(f"; pin '{key}' to '{wanted}' there")
    options = pt.Options(pins={key: str(wanted)})
    pinned = pt.plan(model, *args, mesh="dp=2,tp=2", options=options, **kwargs)
    assert key in pinned.expanded
