"""The rank that needs most is among those that are gone through, one of each kind."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import partita as pt
from partita.compiler.cost.memory import timeline, timeline_at
from partita.compiler.cost.unlike_ranks import unlike_ranks
from partita.one_mesh.planner import Planner


class Halves(nn.Module):
    """Cuts a tensor at other places than it puts it together from."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 36)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(x).chunk(3, -1)
        first, second = (q * k + v).split([4, 8], -1)
        y = torch.cat([q, k[..., :5], second, first], -1)
        return y.square().sum()


@pytest.fixture(scope="module")
def planner() -> Planner:
    args, mesh = (torch.ones(6, 12),), pt.Mesh(a=2, b=4)
    return Planner.of(Halves(), args, {}, mesh, pt.Options())


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


@pytest.mark.parametrize("seed", range(12))
def test_ranks_are_told_apart_as_one_by_one(planner: Planner, seed: int) -> None:
    plan = planner.random(seed)
    first: dict[object, tuple[int, ...]] = {}
    for at in plan.mesh.all_coordinates():
        memory = timeline_at(plan, at)
        first.setdefault((memory.moments, memory.held), at)
    found = unlike_ranks(plan)
    if len(found) > 1:
        assert {*first.values()} <= {*found}
    assert timeline(plan).peak_bytes == most(plan)
