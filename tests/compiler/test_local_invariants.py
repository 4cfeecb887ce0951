"""What ranks are about to run, checked before: shards, and collectives in step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import fx, nn

from partita.compiler.errors import InvariantViolation
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    set_info,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.local_invariants import (
    Issued,
    digest,
    in_step,
    local,
    local_of_all,
)

aten, c10d = torch.ops.aten, torch.ops._c10d_functional
MESH = Mesh(tp=2)
type_of = TensorType.parse
SUM, SPLIT, WHOLE = (Placement.parse(text) for text in ("P(sum)", "S(0)", "B"))


def program(
    make: Callable[[fx.Graph, fx.Node], fx.Node],
    says: str = "f32[2, 3]",
    leaves: Placement = SPLIT,
    rank: int = 0,
) -> LocalProgram:
    """Return what a rank makes of a shard of ``x``, a matrix split into two rows each.

    ``says`` is the local type that stands at what is made.
    """
    graph = fx.Graph()
    made = make(graph, graph.placeholder("x"))
    set_info(made, NodeInfo("made", Phase.FORWARD, (type_of(says),), source="m.py:3"))
    graph.output((made,))
    return LocalProgram(
        fx.GraphModule(nn.Module(), graph),
        (InputRole(InputKind.INPUT, "x"),),
        (OutputRole(OutputKind.OUTPUT, "y"),),
        (type_of("f32[4, 3]"),),
        (type_of("f32[4, 3]"),),
        (SPLIT,),
        (leaves,),
        MESH,
        (rank,),
    )


def negated(graph: fx.Graph, x: fx.Node) -> fx.Node:
    return graph.call_function(aten.neg.default, (x,))


def gathered(graph: fx.Graph, x: fx.Node) -> fx.Node:
    sent = (x, 2, "stage0/tp")
    pending = graph.call_function(c10d.all_gather_into_tensor.default, sent)
    return graph.call_function(c10d.wait_tensor.default, (pending,))


def test_what_makes_its_shards_may_run() -> None:
    assert local(program(negated)) == ()


def test_collectives_are_told_with_what_goes_in() -> None:
    (call,) = local(program(gathered, "f32[4, 3]", WHOLE))
    assert call.op == "_c10d_functional.all_gather_into_tensor.default"
    assert (call.payload, call.constants) == (type_of("f32[2, 3]"), (2, "stage0/tp"))
    assert call.group == "stage0/tp"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            program(negated, "f32[4, 3]"),
            r"made \(m.py:3\): aten.neg.default makes f32\[2, 3\], its placement says "
            r"f32\[4, 3\]",
        ),
        (
            program(negated, "i64[2, 3]"),
            r"makes f32\[2, 3\], its placement says i64\[2, 3\]",
        ),
        (
            program(negated, leaves=WHOLE),
            r"output y leaves as \[2, 3\], its placement says \[4, 3\]",
        ),
        (
            program(lambda g, x: g.call_function(aten.mm.default, (x, x))),
            r"made \(m.py:3\): aten.mm.default does not take these shards: ",
        ),
    ],
)
def test_what_makes_anything_else_is_refused(wrong: LocalProgram, message: str) -> None:
    with pytest.raises(InvariantViolation, match=message):
        local(wrong)


def test_ranks_that_share_a_graph_are_checked_once() -> None:
    first = program(gathered, "f32[4, 3]", WHOLE)
    other = program(gathered, "f32[4, 3]", WHOLE, rank=1)
    alike = replace(first, coordinates=(1,))
    found = local_of_all([first, alike, other])
    assert found[1] is found[0]
    assert found[2] is not found[0]
    assert found[2] == found[0]


def test_shards_of_another_shape_are_checked_by_themselves() -> None:
    first = program(negated)
    uneven = replace(first, input_types=(type_of("f32[3, 3]"),), coordinates=(1,))
    with pytest.raises(InvariantViolation, match=r"makes f32\[1, 3\]"):
        local_of_all([first, uneven])


def issued(op: str = "all_reduce", payload: str = "f32[4]", *constants: Any) -> Issued:
    return Issued("key", op, type_of(payload), (*constants, "stage0/tp"))


SAME = issued("all_reduce", "f32[4]", "sum")
OTHERS = [
    issued("all_gather", "f32[4]", "sum"),
    issued("all_reduce", "bf16[4]", "sum"),
    issued("all_reduce", "f32[5]", "sum"),
    issued("all_reduce", "f32[4]", "max"),
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_ranks_that_call_something_else_are_named(other: Issued) -> None:
    assert digest([SAME, SAME]) != digest([SAME, other])
    in_step(MESH, [[SAME, SAME], [SAME, SAME]])
    with pytest.raises(InvariantViolation) as caught:
        in_step(MESH, [[SAME, SAME], [SAME, other]])
    assert str(caught.value) == (
        f"call 1 over stage0/tp: rank 0 calls {SAME}, rank 1 calls {other}"
    )


def test_a_rank_that_calls_fewer_is_named() -> None:
    assert digest([SAME, SAME]) != digest([SAME])
    with pytest.raises(
        InvariantViolation,
        match="over stage0/tp rank 0 calls 2 collectives, rank 1 1",
    ):
        in_step(MESH, [[SAME, SAME], [SAME]])


def test_sizes_of_an_exchange_are_each_rank_s_own() -> None:
    one = issued("all_to_all_single", "f32[3]", (1, 2), (1, 1))
    other = issued("all_to_all_single", "f32[2]", (1, 1), (2, 1))
    assert digest([one]) == digest([other])
    in_step(MESH, [[one], [other]])


def test_groups_along_an_axis_are_apart() -> None:
    """Ranks 0 and 1 share a group along tp, 0 and 2 one along dp."""
    mesh, dp = Mesh(dp=2, tp=2), replace(SAME, constants=("sum", "stage0/dp"))
    in_step(mesh, [[SAME, dp], [dp, SAME], [dp], [dp]])
    with pytest.raises(InvariantViolation, match="over stage0/tp rank 2 calls 0"):
        in_step(mesh, [[SAME], [SAME], [], [SAME]])
    assert digest([SAME, dp]).keys() == {"stage0/tp", "stage0/dp"}
