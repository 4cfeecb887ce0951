"""What is made again is dead between its last use in forward and its clone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.models.dropout import with_dropout
from tests.models.searched import searched
from tests.models.zoo import Built, sharded_pins
from tests.slow import all_slow_but
from torch import fx

from partita.compiler.capture.capture import Captured, capture
from partita.compiler.errors import BadPlan
from partita.compiler.ir.again import again_key
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Phase, has_info, info, op_name
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered
from partita.one_mesh.planner import Planner
from partita.options import Options
from partita.passes.recompute import Recompute

BLOCKS = {"gpt2": "transformer.h.*", "llama": "model.layers.*", "bert": "*.layer.*"}


@cache
def built_and_captured(name: str) -> tuple[Built, Captured]:
    built = with_dropout(name)
    model, args, kwargs = built
    return built, capture(model, args, kwargs)


@cache
def zero3_plan(name: str, *patterns: str) -> Plan:
    """Return a plan that stores all in pieces and gathers them for their use."""
    (model, _, kwargs), captured = built_and_captured(name)
    pins = {n: f"{pin} use=(B,)" for n, pin in sharded_pins(model, 1).items()}
    pins |= dict.fromkeys(kwargs, "S(0)")
    options = Options(pins=pins, recompute=patterns)
    return searched(Planner(captured, name, Mesh(dp=2), options))


def lowered(name: str, plan: Plan) -> Lowered:
    return Lowered.of(built_and_captured(name)[1], plan, default_rules)


def aliases(node: fx.Node) -> Iterator[fx.Node]:
    """Yield a node and all that may share its memory."""
    yield node
    for user in node.users:
        rule = default_rules.get(op_name(user)) if has_info(user) else None
        is_view = rule is not None and rule.free
        if is_view or op_name(user) == "<built-in function getitem>":
            yield from aliases(user)


@pytest.mark.parametrize("name", all_slow_but(["gpt2"], BLOCKS))
def test_what_is_made_again_is_dead_in_between(name: str) -> None:
    plan = zero3_plan(name, BLOCKS[name], "parameter:*")
    gathers = [key for key in plan.recompute if " -> " in key]
    assert len(gathers) > 10
    assert len(plan.recompute) - len(gathers) > 20
    graph = lowered(name, plan).at((0,)).graph_module.graph
    position = {node: index for index, node in enumerate(graph.nodes)}
    at = {info(n).key: n for n in graph.nodes if has_info(n)}
    starts = min(
        position[n]
        for n in graph.nodes
        if has_info(n) and info(n).phase is not Phase.FORWARD
    )
    for key in plan.recompute:
        used = [user for alias in aliases(at[key]) for user in alias.users]
        assert max(position[user] for user in used) < starts, key
        again = at[again_key(key)]
        first = min(position[user] for user in again.users)
        between = list(graph.nodes)[position[again] + 1 : first]
        assert all(is_brought_for_another(node) for node in between), (key, between)


def is_brought_for_another(node: fx.Node) -> bool:
    """Whether a node is made again, too, or a boxing for what is."""
    return not has_info(node) or "~again" in info(node).key or " -> " in info(node).key


def test_generated_code_lets_go_of_what_is_used_no_more() -> None:
    plan = zero3_plan("gpt2", BLOCKS["gpt2"], "parameter:*")
    module = lowered("gpt2", plan).at((0,)).graph_module
    lines = module.code.splitlines()
    freed = {name: i for i, line in enumerate(lines) for name in gone(line)}
    at = {info(n).key: n for n in module.graph.nodes if has_info(n)}
    for key in plan.recompute:
        made = at[again_key(key)].name
        where = next(i for i, line in enumerate(lines) if f" {made} = " in line)
        assert freed[at[key].name] < where, key


def gone(line: str) -> list[str]:
    """Return the names that ``...;  a = b = None`` sets to nothing.

    >>> gone("x = f(a, b);  a = b = None")
    ['a', 'b']
    """
    found = re.search(r";\s+((?:\w+ = )+)None", line)
    return re.findall(r"\w+", found[1]) if found else []


def test_the_same_numbers_are_drawn_again() -> None:
    plan = zero3_plan("gpt2", BLOCKS["gpt2"])
    program = lowered("gpt2", plan).program
    drawn: dict[str, Any] = {
        info(n).key: n.args[2:]
        for n in program.calls()
        if n.target is torch.ops.partita.random.default
    }
    again = {key for key in drawn if key.endswith("~again")}
    assert again
    for key in again:
        assert drawn[key] == drawn[key.removesuffix("~again")]


def test_what_backward_does_not_use_is_not_made_again() -> None:
    captured = built_and_captured("gpt2")[1]
    plan = zero3_plan("gpt2")
    forward = [n for n in captured.program.calls() if info(n).phase is Phase.FORWARD]
    loss = info(forward[-1]).key
    unused = replace(plan, recompute=(loss,))
    with pytest.raises(BadPlan) as caught:
        Recompute(unused).run(captured.program)
    assert str(caught.value) == (
        f"recompute: {loss!r} is made again for nobody; want what forward makes and "
        "backward uses"
    )
    assert Recompute(plan).run(captured.program) is captured.program
