"""Messages start, and are waited for, where the plan says; nothing else moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.models.captured import captured
from tests.models.turned import turned
from torch import fx

import partita as pt
from partita.compiler.errors import BadPlan
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import has_info, info
from partita.compiler.local_invariants import in_step, local_of_all
from partita.compiler.plan.turns import END, Half, turns_of
from partita.lowering import Lowered
from partita.passes.part_messages import part_messages
from partita.runtime.collectives import is_collective, is_wait

KINDS = [
    ("zero3", False, 0),
    ("zero3", True, 0),
    ("zero3", True, 2**14),
    ("zero2", False, 0),
    ("zero2", False, 2**14),
]


@cache
def lowered(kind: str, again: bool = False, bucket: int = 0) -> Lowered:
    plan = turned(kind, again, bucket)
    return Lowered.of(captured("gpt2")[1], plan, pt.default_rules)


def calls_between(local: LocalProgram, plan: pt.Plan) -> dict[str, frozenset[str]]:
    """Return by message the calls between its start and the wait for it."""
    first_of = {key: keys[0] for keys in plan.buckets for key in keys}
    nodes = [n for n in local.graph_module.graph.nodes if n.op == "call_function"]
    started: dict[fx.Node, int] = {}
    found: dict[str, frozenset[str]] = {}
    for at, node in enumerate(nodes):
        if is_collective(node):
            started[node] = at
        elif is_wait(node):
            (message,) = node.all_input_nodes
            inside = nodes[started[message] + 1 : at]
            keys = {info(n).key for n in inside if has_info(n)} & plan.nodes.keys()
            key = info(message).key
            key = key if key in plan.nodes else key.rpartition("/")[0]
            found[first_of.get(key, key)] = frozenset(keys)
    return found


def turns_between(plan: pt.Plan) -> dict[str, frozenset[str]]:
    """Return the same as the plan says."""
    first_of = {key: keys[0] for keys in plan.buckets for key in keys}
    under_way: dict[str, set[str]] = {}
    found: dict[str, frozenset[str]] = {}
    for (item, *_), half in turns_of(plan):
        if isinstance(item, str):
            for calls in under_way.values():
                calls.add(item)
            continue
        key = first_of.get(item.key, item.key)
        if half is Half.FIRST:
            under_way[key] = set()
        elif half is Half.SECOND:
            found[key] = frozenset(under_way.pop(key))
    return found


@pytest.mark.parametrize(("kind", "again", "bucket"), KINDS)
def test_what_is_computed_while_a_message_passes_is_what_the_plan_says(
    kind: str, again: bool, bucket: int
) -> None:
    plan = turned(kind, again, bucket)
    assert len(plan.ahead) + len(plan.late) > 4
    assert bool(plan.buckets) is bool(bucket)
    emitted = calls_between(lowered(kind, again, bucket).at((0,)), plan)
    stated = turns_between(plan)
    assert set(stated) == {*plan.ahead, *plan.late}
    assert sum(map(bool, stated.values())) > 0.7 * len(stated)
    views = {key for key, node in plan.nodes.items() if not node.seconds}
    for key, calls in stated.items():  # views of what leaves wait where they like
        assert calls - views == emitted[key] - views


@pytest.mark.parametrize(("kind", "again", "bucket"), KINDS)
def test_the_same_is_called_and_leaves(kind: str, again: bool, bucket: int) -> None:
    program = lowered(kind, again, bucket)
    plain = replace(program, plan=replace(program.plan, ahead={}, late={}))
    old, new = plain.at((0,)), program.at((0,))
    assert old.outputs == new.outputs
    names = [
        Counter(str(node.target) for node in local.graph_module.graph.nodes)
        for local in (old, new)
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize(("kind", "again", "bucket"), KINDS)
def test_ranks_begin_their_collectives_in_one_order(
    kind: str, again: bool, bucket: int
) -> None:
    program = lowered(kind, again, bucket)
    in_step(program.plan.mesh, local_of_all(program.of_all()))


@pytest.mark.parametrize(("kind", "again", "bucket"), KINDS)
def test_the_program_computes_the_same(kind: str, again: bool, bucket: int) -> None:
    model, args, kwargs = captured("gpt2")[0]
    assert pt.verify(model, *args, plan=turned(kind, again, bucket), **kwargs).ok


def test_with_nothing_said_the_program_stays_what_it_is() -> None:
    program = lowered("zero2")
    local = program.at((0,))
    assert part_messages(local, replace(program.plan, ahead={}, late={})) is local


def test_a_gather_that_is_needed_again_starts_in_the_backward() -> None:
    plan = turned("zero3", again=True)
    places = [plan.nodes[place].phase for place in plan.ahead.values()]
    assert len(set(places)) > 1


def test_what_is_waited_for_last_is_so_behind_all_that_is_computed() -> None:
    plan = turned("zero3")
    last = [key for key, place in plan.late.items() if place == END]
    assert last
    nodes = list(lowered("zero3").at((0,)).graph_module.graph.nodes)
    products = [i for i, n in enumerate(nodes) if n.target is torch.ops.aten.mm.default]
    waits = [
        i
        for i, node in enumerate(nodes)
        if is_wait(node) and info(node).key.rpartition("/")[0] in last
    ]
    waits += [i for i, n in enumerate(nodes) if is_wait(n) and info(n).key in last]
    assert waits
    assert min(waits) > max(products)


def test_a_place_that_no_rank_runs_is_refused() -> None:
    program = lowered("zero3")
    local = replace(program, plan=replace(program.plan, ahead={}, late={})).at((0,))
    plan = replace(program.plan, ahead=dict.fromkeys(program.plan.ahead, "nowhere"))
    with pytest.raises(BadPlan, match="stands before 'nowhere', which no rank runs"):
        part_messages(local, plan)
