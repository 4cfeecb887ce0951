"""Sums over ranks begin as soon as they can, in the order in which they did."""

from __future__ import annotations

from functools import cache

import torch
from tests.models import zoo
from tests.models.captured import captured
from tests.models.searched import searched
from tests.passes.test_sink_waits import names, positions
from torch import fx

import partita as pt
from partita.compiler.ir.local_program import LocalProgram
from partita.lowering import Lowered
from partita.one_mesh.planner import Planner
from partita.passes.begin_sums import begin_sums
from partita.passes.localize import localize
from partita.passes.sink_waits import sink_waits

MM = torch.ops.aten.mm.default
SUM = torch.ops._c10d_functional.all_reduce.default


@cache
def before() -> LocalProgram:
    """Return a program whose gradients of inputs are sums over two ranks."""
    built, known = captured("gpt2")
    stored = zoo.tensor_parallel_pins(built[0], 1)
    pins = {n: f"{p} use={p}" if "S" in p else p for n, p in stored.items()}
    options = pt.Options(pins=pins)
    plan = searched(Planner(known, "gpt2", pt.Mesh(dp=2), options))
    lowered = Lowered.of(known, plan, pt.default_rules)
    local = localize(lowered.program, (0,), lowered.rules, lowered.steps)
    return sink_waits(local)


def beside(local: LocalProgram) -> int:
    """Return during how many sums a matrix's gradient is computed."""
    at = positions(local)
    products = [at[node] for node in at if node.target is MM]
    waits = {node: next(iter(node.users)) for node in at if node.target is SUM}
    return sum(
        any(at[begun] < product < at[wait] for product in products)
        for begun, wait in waits.items()
    )


def test_gradients_of_matrices_are_computed_while_inputs_are_summed() -> None:
    old, new = before(), begin_sums(before())
    assert beside(new) > beside(old)


def test_a_sum_begins_behind_what_it_adds_up() -> None:
    new = begin_sums(before())
    at = positions(new)
    sums = [node for node in at if node.target is SUM]
    assert sums
    places = [max(at[given] for given in node.all_input_nodes) for node in sums]
    gaps = [at[node] - place for node, place in zip(sums, places, strict=True)]
    assert set(gaps) == {1}


def test_nothing_else_changes() -> None:
    old, new = before(), begin_sums(before())
    assert names(new) == names(old)
    assert new.outputs == old.outputs
    kept = [[n.target for n in positions(x) if n.target is not SUM] for x in (old, new)]
    assert kept[0] == kept[1]


def test_a_program_without_sums_stays_what_it_is() -> None:
    local = before()
    graph = fx.Graph()
    graph.output(())
    module = fx.GraphModule(torch.nn.Module(), graph)
    empty = LocalProgram(module, *((), (), (), (), (), ()), local.mesh, (0,))
    assert begin_sums(empty) is empty


def test_a_graph_is_copied_only_where_the_order_changes() -> None:
    old = before()
    new = begin_sums(old)
    assert new is not old
    assert begin_sums(new) is new
