"""The order that a plan says against the order of the program that a rank runs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import networkx as nx
import pytest
from tests.compiler.search.hand_made import machine
from tests.models import projected, zoo

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import has_info, info
from partita.compiler.plan.document import Boxing, Ref
from partita.compiler.plan.emitted import earliest_first, emitted_units, inside_groups
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.table import default_rules
from partita.lowering import Lowered, capture_for
from partita.options import Options
from partita.passes.fuse_small_ops import fuse_small_ops
from partita.passes.localize import localize
from partita.passes.send_together import send_together
from partita.planning import plan as make_plan


def planned(name: str, fuse: bool = False) -> tuple[zoo.Built, Plan]:
    built = zoo.ZOO[name]()
    model, args, kwargs = built
    pins = zoo.tensor_parallel_pins(model, 1)
    options = Options(pins=pins, hardware=machine(), fuse=fuse)
    return built, make_plan(model, *args, mesh=Mesh(tp=2), options=options, **kwargs)


def run_order(plan: Plan, built: zoo.Built) -> list[str]:
    """Return the keys of the calls of rank 0's own program, and where boxings begin.

    Where some are waited for, ``sink_waits`` says.
    """
    lowered = Lowered.of(capture_for(built[0], plan), plan, default_rules)
    whole = localize(lowered.program, (0,), lowered.rules, lowered.steps)
    local = send_together(fuse_small_ops(whole, plan.fusion), plan.buckets)
    known = {*plan.nodes, *(boxing.key for boxing in plan.boxings)}
    nodes = [n for n in local.graph_module.graph.nodes if n.op == "call_function"]
    keys = [info(node).key for node in nodes if has_info(node)]
    return [key for key in keys if key in known]


@pytest.mark.parametrize("name", ["mlp", "gpt2"])
def test_calls_and_boxings_come_as_they_run(name: str) -> None:
    built, plan = planned(name)
    keys = [
        item.key if isinstance(item, Boxing) else item
        for unit in emitted_units(plan)
        for item in unit
    ]
    views = {b.key for b in plan.boxings} - set(run_order(plan, built))
    assert [key for key in keys if key not in views] == run_order(plan, built)


def test_a_group_stands_where_its_last_call_stood() -> None:
    _, plan = planned("mlp")
    calls = [key for key in plan.order if plan.nodes[key].role is None]
    first, last = calls.index("gelu/0") - 1, calls.index("gelu/0")
    group = (calls[first], calls[last])
    units = emitted_units(replace(plan, fusion=(group,)))
    assert group in units
    assert sorted(map(str, (i for u in units for i in u))) == sorted(
        map(str, (i for u in emitted_units(plan) for i in u))
    )


def test_what_only_a_group_uses_is_inside_of_it() -> None:
    _, plan = planned("mlp")
    users = {
        ref: [k for k, n in plan.nodes.items() if ref in n.operands]
        for ref in (Ref(key) for key in plan.order)
    }
    boxed = {boxing.ref for boxing in plan.boxings}
    leaving = {output.value for output in plan.outputs}
    ref, (user,) = next(
        (ref, keys)
        for ref, keys in users.items()
        if len(keys) == 1 and ref not in boxed | leaving
        and plan.nodes[ref.key].role is None
    )  # fmt: skip
    grouped = replace(plan, fusion=((ref.key, user),))
    assert ref in inside_groups(grouped)
    assert Ref(user) not in inside_groups(grouped)
    assert inside_groups(plan) == frozenset()


def test_products_that_are_one_stand_where_the_first_stood() -> None:
    plan = projected.planned("tp=2")
    local = Lowered.of(capture_for(projected.built()[0], plan), plan, default_rules)
    nodes = local.at((0,)).graph_module.graph.nodes
    keys = [info(node).key for node in nodes if has_info(node)]
    units = emitted_units(plan)
    calls = [tuple(map(str, u)) for u in units if isinstance(u[0], str)]
    assert set(plan.joined) <= set(calls)
    fused = {keys: f"fusion[{i}]" for i, keys in enumerate(plan.fusion)}
    ran = [fused.get(unit, unit[0]) for unit in calls]
    assert [key for key in ran if key in keys] == [key for key in keys if key in ran]


@pytest.mark.parametrize("seed", range(200))
def test_each_comes_behind_those_it_needs_else_as_numbered(seed: int) -> None:
    draw = Random(seed)
    num = draw.randrange(1, 15)
    order = draw.sample(range(num), num)
    if draw.random() < 0.5:  # near the order of their numbers, as fused groups are
        order = sorted(range(num), key=lambda i: i + draw.randrange(4))
    needs = {
        i: set(draw.sample(order[:at], draw.randrange(min(at, 3) + 1)))
        for at, i in enumerate(order)
    }
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(num))
    graph.add_edges_from((other, i) for i, own in needs.items() for other in own)
    expected = [*nx.lexicographical_topological_sort(graph)]
    assert earliest_first(needs[i] for i in range(num)) == expected
