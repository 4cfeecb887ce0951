"""The rank that needs most is among those that are gone through, one of each kind."""

from __future__ import annotations

import torch
from torch import nn

import partita as pt
from partita.compiler.cost.memory import timeline, timeline_at
from partita.compiler.cost.unlike_ranks import unlike_ranks


def planned(pin: str) -> pt.Plan:
    options = pt.Options(pins={"weight": pin}, loss=lambda y: y.square().sum())
    model = nn.Linear(4, 8, bias=False)
    return pt.plan(model, torch.ones(8, 4), mesh="a=2,b=4", options=options)


def most(plan: pt.Plan) -> int:
    ranks = plan.mesh.all_coordinates()
    return max(timeline_at(plan, rank).peak_bytes for rank in ranks)


def test_chunks_that_an_axis_cuts_elsewhere_make_ranks_unlike() -> None:
    plan = planned("(S(0), S(0; 5|3))")
    found = unlike_ranks(plan)
    assert 1 < len(found) < plan.mesh.size
    assert timeline(plan).peak_bytes == most(plan)
    first = timeline_at(plan, (0, 0)).peak_bytes
    assert first < most(plan), "the first rank would do"


def test_else_the_first_rank_holds_most() -> None:
    plan = planned("(S(0), S(1))")
    assert unlike_ranks(plan) == [(0, 0)]
    assert timeline(plan).peak_bytes == most(plan)
