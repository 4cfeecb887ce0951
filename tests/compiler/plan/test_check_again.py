"""What is made again stands in a plan twice; whatever contradicts that is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from small_plan import at, boxing, small_plan

from partita.compiler.errors import BadPlan
from partita.compiler.ir.again import again_key
from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Boxing, Node, Ref
from partita.compiler.plan.plan import Plan

RELU, MM = "relu/0", "down/mm/0~grad/mm/0"
CLONE = again_key(RELU)
BOXED = "mean/0~grad/expand/0 -> (S(0), B)"


@cache
def plan_with_clone() -> Plan:
    """Return the small plan with its relu made again for the weight's gradient."""
    plan = small_plan()
    relu, user = plan.nodes[RELU], plan.nodes[MM]
    clone = replace(relu, phase=Phase.BACKWARD_INPUT)
    nodes = {**plan.nodes, CLONE: clone}
    nodes[MM] = replace(user, operands=(Ref(CLONE), *user.operands[1:]))
    return with_nodes(replace(plan, recompute=(RELU,)), nodes, before=MM)


def with_nodes(plan: Plan, nodes: dict[str, Node], before: str | None = None) -> Plan:
    order = [key for key in plan.order if key in nodes]
    for key in nodes:
        if key not in order:
            order.insert(order.index(before) if before else len(order), key)
    stage = replace(plan.stages[0], nodes=tuple(order))
    return replace(plan, nodes=nodes, order=tuple(order), stages=(stage,))


def refused(plan: Plan) -> str:
    with pytest.raises(BadPlan) as caught:
        plan.validate()
    return str(caught.value)


def test_a_clone_that_does_the_same_is_right() -> None:
    plan = plan_with_clone()
    plan.validate()
    assert Plan.from_dict(plan.to_dict()) == plan


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ((), f"recompute: {CLONE!r} is there, but its original not listed"),
        ((RELU, RELU), "recompute: found a key twice, wanted each once"),
        (("input:x",), "recompute: found 'input:x', wanted a call of the forward"),
        ((MM,), f"recompute: found {MM!r}, wanted a call of the forward"),
        (
            ("up/mm/0",),
            "recompute: 'up/mm/0' is listed, but nodes has no 'up/mm/0~again'; to make "
            "more again, plan like this one with recompute",
        ),
        (("x",), "recompute: found 'x', wanted the key of a node or of a boxing"),
        (
            (RELU, BOXED),
            f"recompute: {BOXED!r} is listed, but boxings has no '{BOXED}~again' for "
            "its users of the backward",
        ),
    ],
)
def test_what_is_listed_stands_there_twice(listed: Sequence[str], message: str) -> None:
    plan = replace(plan_with_clone(), recompute=tuple(listed))
    assert refused(plan) == f"plan: {message}"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op": "aten.exp.default"}, "op: found aten.exp.default, wanted aten.relu"),
        ({"operands": (Ref("x"),)}, "operands[0]: found 'x', wanted the key of a node"),
        ({"phase": Phase.FORWARD}, "phase: found forward, wanted backward-input of"),
        ({"constants": ("1",)}, "constants: found [1], wanted [] of what is made"),
    ],
)
def test_a_clone_does_what_the_original_does(
    changes: dict[str, object], message: str
) -> None:
    plan = plan_with_clone()
    clone = replace(plan.nodes[CLONE], **changes)
    wrong = with_nodes(plan, {**plan.nodes, CLONE: clone})
    assert refused(wrong).startswith(f"plan: nodes.{CLONE}.{message}")


def test_a_clone_works_on_clones() -> None:
    plan = plan_with_clone()
    first = replace(plan.nodes["up/mm/0"], phase=Phase.BACKWARD_INPUT)
    nodes = {**plan.nodes, "up/mm/0~again": first}
    wrong = with_nodes(plan, nodes, before=CLONE)
    wrong = replace(wrong, recompute=(RELU, "up/mm/0"))
    assert refused(wrong) == (
        f"plan: nodes.{CLONE}.operands: found [up/mm/0], wanted [up/mm/0~again] of "
        "what is made again"
    )


def test_the_backward_uses_the_clone() -> None:
    plan = plan_with_clone()
    user = plan.nodes[MM]
    user = replace(user, operands=(Ref(RELU), *user.operands[1:]))
    wrong = with_nodes(plan, {**plan.nodes, MM: user})
    assert refused(wrong) == (
        f"plan: recompute: {MM!r} of the backward uses relu/0, wanted {CLONE!r}"
    )


def gathered_twice() -> Plan:
    """Return a plan with a parameter that both halves want whole on tp."""
    plan = small_plan()
    down = "parameter:down.weight"
    forward, back = plan.nodes["down/mm/0"], plan.nodes["down/mm/0~grad/mm/1"]
    whole = at("(B, B)")

    def with_whole(node: Node) -> Node:
        chosen = node.signature
        wanted = [
            whole if ref.key == down else placement
            for ref, placement in zip(node.operands, chosen.operands, strict=True)
        ]
        return replace(node, signature=replace(chosen, operands=tuple(wanted)))

    nodes = {
        **plan.nodes,
        "down/mm/0": with_whole(forward),
        "down/mm/0~grad/mm/1": with_whole(back),
    }
    first = boxing(down, "B, S(0)", "all_gather tp", "B, B", ("down/mm/0",))
    key = again_key(first.key)
    second = replace(first, key=key, consumers=("down/mm/0~grad/mm/1",))
    held = plan.parameters["down.weight"]
    used = replace(held, placements=replace(held.placements, use=whole))
    return replace(
        plan,
        nodes=nodes,
        parameters={**plan.parameters, "down.weight": used},
        boxings=(*plan.boxings, first, second),
        recompute=(first.key,),
    )


def test_a_boxing_made_again_serves_the_backward() -> None:
    plan = gathered_twice()
    plan.validate()
    assert Plan.from_dict(plan.to_dict()) == plan
    *rest, first, second = plan.boxings

    def of(*boxings: Boxing) -> Plan:
        return replace(plan, boxings=(*rest, *boxings))

    both = (*first.consumers, *second.consumers)
    for_both = replace(first, consumers=both)
    assert "lacks 'down/mm/0~grad/mm/1'" in refused(
        of(first, replace(second, consumers=first.consumers))
    )
    assert "has no such node: 'down/mm/0~grad/mm/1'" in refused(of(for_both, second))
    assert "is listed, but boxings has no" in refused(of(for_both))
    unlisted = replace(plan, recompute=())
    assert "is there, but its original not listed" in refused(unlisted)
