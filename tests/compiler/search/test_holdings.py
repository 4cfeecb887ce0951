"""What an assignment holds is what its plan holds, where sums are completed, too."""

from __future__ import annotations

import random

import pytest
from tests.compiler.search.hand_made import RandomModel, planner

from partita.compiler.cost.memory import END_OF_MICROBATCH, timeline
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.call_times import CallTimes
from partita.compiler.search.decide import Found
from partita.compiler.search.draw import draw_choices
from partita.compiler.search.holdings import find_holdings
from partita.compiler.search.keeping import keep

_BY_HAND = SearchResult("by hand", "drawn", None, 0.0)


@pytest.mark.parametrize("mesh", [Mesh(tp=2), Mesh(dp=2, tp=2)], ids=str)
@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5, 6])
def test_behind_the_microbatches_is_held_what_the_plan_says(
    seed: int, mesh: Mesh
) -> None:
    model, rng = RandomModel(seed, 8), random.Random(seed)
    asked = planner(model, model.inputs(), mesh=mesh, microbatches=2)
    times = CallTimes(asked.posed)
    for _ in range(4):
        choices = draw_choices(rng, asked.posed)
        keeping = keep(find_holdings(asked.posed, choices, "adamw"), set())
        live = zip(keeping.moments, keeping.live, strict=True)
        end = times.moments.of_place(times.fed_until)
        found = max(num_bytes for moment, num_bytes in live if moment > end)
        step = timeline(asked.decide(Found(choices, _BY_HAND, frozenset())))
        behind = step.moments.index(END_OF_MICROBATCH) + 1
        assert found == max(step.bytes_at[behind:])
