"""What an assignment holds is what its plan holds, where sums are completed, too."""

from __future__ import annotations

import random

import pytest
import torch
from tests.compiler.search.hand_made import RandomModel, Uneven, planner

from partita.compiler.cost.memory import END_OF_MICROBATCH, timeline
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.call_times import CallTimes
from partita.compiler.search.decide import Found
from partita.compiler.search.draw import draw_choices
from partita.compiler.search.holdings import find_holdings
from partita.compiler.search.keeping import keep
from partita.one_mesh.planner import Planner

_BY_HAND = SearchResult("by hand", "drawn", None, 0.0)


def check_behind(asked: Planner, seed: int, num_drawn: int) -> None:
    """Compare what is held behind the microbatches with what the plan says."""
    rng, times = random.Random(seed), CallTimes(asked.posed)
    for _ in range(num_drawn):
        choices = draw_choices(rng, asked.posed)
        keeping = keep(find_holdings(asked.posed, choices, "adamw"), set())
        live = zip(keeping.moments, keeping.live, strict=True)
        end = times.moments.of_place(times.fed_until)
        found = max(num_bytes for moment, num_bytes in live if moment > end)
        step = timeline(asked.decide(Found(choices, _BY_HAND, frozenset())))
        behind = step.moments.index(END_OF_MICROBATCH) + 1
        assert found == max(step.bytes_at[behind:])


@pytest.mark.parametrize("mesh", [Mesh(tp=2), Mesh(dp=2, tp=2), Mesh(dp=3)], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5, 6])
def test_behind_the_microbatches_is_held_what_the_plan_says(
    seed: int, mesh: Mesh
) -> None:
    model = RandomModel(seed, 8)
    check_behind(planner(model, model.inputs(), mesh=mesh, microbatches=2), seed, 4)


def test_what_sums_are_gathered_to_is_held_without_padding() -> None:
    x = torch.ones(12, 6)
    check_behind(planner(Uneven(), x, mesh=Mesh(dp=3), microbatches=2), 0, 30)


@pytest.mark.parametrize("microbatches", [1, 2])
def test_what_is_gathered_is_held_with_its_padding(microbatches: int) -> None:
    rng = random.Random(0)
    asked = planner(
        Uneven(), torch.ones(12, 6), mesh=Mesh(dp=3), microbatches=microbatches
    )
    padded = 0
    for _ in range(20):
        choices = draw_choices(rng, asked.posed)
        holdings = find_holdings(asked.posed, choices, "adamw")
        step = timeline(asked.decide(Found(choices, _BY_HAND, frozenset())))
        last = sorted(step.held, key=lambda one: (one.last, one.first))
        boxed = {one.key: one.num_bytes for one in last}  # what comes of it
        copies = [one for one in holdings.holdings if one.is_copy]
        for copy in copies:
            key, *_ = copy.keys  # and those of views
            if not key.endswith("(B,)"):
                continue
            assert copy.num_bytes == boxed[key], key
            padded += copy.num_bytes == Uneven.PADDED // microbatches
    assert padded
