"""Sums over ranks run beside what does not need them; all else stays where it was."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.models import zoo
from tests.models.captured import captured
from tests.models.searched import searched
from torch import fx

import partita as pt
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.search.buckets import Packing
from partita.lowering import Lowered
from partita.one_mesh.planner import Planner
from partita.passes.begin_sums import begin_sums
from partita.passes.fuse_small_ops import fuse_small_ops
from partita.passes.localize import localize
from partita.passes.send_together import send_together
from partita.passes.sink_waits import sink_waits
from partita.runtime.collectives import is_collective, is_wait

MM = torch.ops.aten.mm.default
SUM = torch.ops._c10d_functional.all_reduce_.default


@cache
def lowered(name: str, kind: str) -> Lowered:
    built, known = captured(name)
    pins = {
        "dp": lambda: zoo.data_parallel_pins(built, 1),
        "zero": lambda: zoo.sharded_pins(built[0], 1),
        "tp": lambda: zoo.tensor_parallel_pins(built[0], 1),
    }[kind]()
    planner = Planner(known, name, pt.Mesh(dp=2), pt.Options(pins=pins))
    return Lowered.of(known, searched(planner), pt.default_rules)


def before(program: Lowered) -> LocalProgram:
    local = localize(program.program, (0,), program.rules, program.steps)
    return fuse_small_ops(local, program.plan.fusion)


def sunk(program: Lowered) -> LocalProgram:
    """Return what the first rank runs, its sums the machine's own."""
    return begin_sums(sink_waits(send_together(before(program), program.plan.buckets)))


def names(local: LocalProgram) -> list[str]:
    return [str(n.target) for n in local.graph_module.graph.nodes if is_collective(n)]


def positions(local: LocalProgram) -> dict[fx.Node, int]:
    return {node: at for at, node in enumerate(local.graph_module.graph.nodes)}


def test_the_backward_goes_on_while_gradients_are_summed() -> None:
    at = positions(sunk(lowered("gpt2", "dp")))
    sums = [n for n in at if is_wait(n) and "all_reduce" in str(n.args[0])]
    assert len(sums) > 10
    products = [at[node] for node in at if node.target is MM]
    started = [at[node.all_input_nodes[0]] for node in sums]
    behind = [wait for wait in sums if at[wait] > max(products)]
    assert min(started) < max(products)
    assert len(behind) > 10


@pytest.mark.parametrize("kind", ["dp", "zero", "tp"])
@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_collectives_begin_in_the_order_in_which_they_did(name: str, kind: str) -> None:
    old = before(lowered(name, kind))
    new = sink_waits(old)
    assert names(new) == names(old)
    assert new.outputs == old.outputs
    assert len(positions(new)) == len(positions(old))


def test_the_backward_goes_on_while_a_bucket_is_summed() -> None:
    plan = lowered("gpt2", "dp").plan
    late = [keys for keys in Packing.of(plan).into(2**16) if len(keys) > 1]
    assert len(late) > 1
    found = replace(lowered("gpt2", "dp"), plan=replace(plan, buckets=tuple(late)))
    at = positions(sunk(found))
    sums = [n for n in at if is_wait(n) and n.all_input_nodes[0].target is SUM]
    assert len(sums) == len(late)
    products = [at[node] for node in at if node.target is MM]
    started = [at[node.all_input_nodes[0]] for node in sums]
    assert min(started) < max(products)
    assert all(at[node] > max(products) for node in sums)


def test_a_wait_stands_right_before_the_first_that_needs_it() -> None:
    at = positions(sunk(lowered("gpt2", "tp")))
    inner = [
        (at[node], min(at[user] for user in node.users))
        for node in at
        if is_wait(node) and "all_reduce" in str(node.args[0])
    ]
    last = max(at.values())
    needed_inside = [pair for pair in inner if pair[1] < last]
    assert needed_inside
    waits = {at[node] for node in at if is_wait(node)}
    assert all(set(range(own, user)) <= waits for own, user in needed_inside)


def test_what_holds_its_operand_is_waited_for_at_once() -> None:
    at = positions(sunk(lowered("gpt2", "zero")))
    others = [n for n in at if is_wait(n) and "all_reduce" not in str(n.args[0])]
    assert others
    assert all(at[n] == at[n.all_input_nodes[0]] + 1 for n in others)


def test_a_program_without_sums_stays_what_it_is() -> None:
    local = before(lowered("gpt2", "dp"))
    graph = fx.Graph()
    graph.output(())
    empty = LocalProgram(
        fx.GraphModule(torch.nn.Module(), graph),
        *((), (), (), (), (), ()),
        local.mesh,
        (0,),
    )
    assert sink_waits(empty) is empty
