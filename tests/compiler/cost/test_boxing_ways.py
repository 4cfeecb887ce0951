"""Boxings that are alike allocate alike, and are gone through once."""

from __future__ import annotations

from tests.models.turned import plain

from partita.compiler.cost.boxing_ways import Ways
from partita.compiler.cost.rank import Rank
from partita.compiler.cost.step import StepKind
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
