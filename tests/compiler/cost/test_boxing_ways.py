"""Boxings that are alike allocate alike, and are gone through once."""

from __future__ import annotations

from itertools import pairwise

from tests.models.turned import plain

from partita.compiler.cost.boxing_ways import Ways, way_of
from partita.compiler.cost.rank import Rank
from partita.compiler.cost.step import StepKind, find_step
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.uses import type_of


def test_a_gather_makes_all_of_a_parameter_of_a_piece() -> None:
    plan = plain("zero3")
    rank = Rank(plan.mesh, (0,), "cpu")
    ways = Ways(plan, rank)
    gathers = [b for b in plan.boxings if plan.nodes[b.producer].role]
    assert gathers
    for boxing in gathers:
        type_ = type_of(plan, boxing.ref)
        shard = rank.shard(rank.type(type_, boxing.source))
        chain, made = ways.of(boxing, shard)
        assert made.type == type_
        (message,) = [link for link in chain if link.kind is not None]
        assert message.kind is StepKind.ALL_GATHER
        assert message.link.num_bytes == type_.num_bytes
        assert ways.of(boxing, shard) == (chain, made)
    assert len(ways.known) <= len(gathers)


def test_of_two_slices_the_first_of_what_enters_alone_is_a_view() -> None:
    mesh, type_ = Mesh(dp=2, tp=2), TensorType.parse("f32[8, 4]")
    places = [Placement.parse(p) for p in ("(B, B)", "(S(0), B)", "(S(0), S(0))")]
    steps = [
        step
        for axis, (old, new) in enumerate(pairwise(places))
        if (step := find_step(type_.shape, old, new, axis, mesh)) is not None
    ]
    rank, hardware = Rank(mesh, (0, 0), "cpu"), load_hardware("cpu-gloo")
    shard = rank.shard(rank.type(type_, places[0]))
    made = {
        enters: [
            (one.link.name, one.link.num_bytes)
            for one in way_of(type_, tuple(steps), shard, rank, hardware, enters)[0]
        ]
        for enters in (True, False)
    }
    assert made[True] == [("slice", type_.num_bytes // 4)]
    assert made[False] == [("slice", type_.num_bytes // 2), *made[True]]
