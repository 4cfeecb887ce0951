"""Within a limit a stage is planned as fast as may be: all that is made again is tried.

On one rank nothing else is open.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import pytest
from tests.models.pipelines import FEW_CALLS

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.errors import NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Program
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.arrangement import SINGLE
from partita.compiler.search.boxed import Boxed, Boxings
from partita.compiler.search.call_times import Tensor
from partita.compiler.search.decide import Found
from partita.compiler.search.holdings import Holdings, find_holdings
from partita.compiler.search.keeping import keep
from partita.compiler.search.makers import Makers
from partita.compiler.search.parts import Clock
from partita.compiler.search.solver import solve
from partita.compiler.search.stage_cost import peak_bytes
from partita.microbatched import in_microbatches
from partita.one_mesh.planner import Planner
from partita.pipelines.stage_plans import StagePlans
from partita.pipelines.stage_search import Room, StageSearch

DRAWN = SearchResult("by hand", "drawn", None, 0.0)
MOST_MAKERS = 8
CLOCK = Clock.of(1000.0)


@lru_cache
def stages(name: str, count: int) -> StagePlans:
    model, args, kwargs = FEW_CALLS[name]()
    options = pt.Options(hardware="cpu-gloo-free")
    captured = in_microbatches(capture(model, args, kwargs), count, options.rules)
    return StagePlans.of(Planner(captured, "Model", SINGLE, options), CLOCK)


class Way(NamedTuple):
    """What a stage takes with some of it made again."""

    seconds: float
    num_bytes: int


def of_stage(plans: StagePlans, begin: int, end: int) -> tuple[Planner, Program]:
    program = plans.program(begin, end).program
    captured = replace(plans.captured, program=program)
    return replace(plans.planner, captured=captured), program


def makers_of(held: Holdings) -> set[str]:
    """Return what of a stage could be made again."""
    return {own[0].keys[0] for own in Makers(held).every.values()}


def ways(plans: StagePlans, begin: int, end: int, live: int) -> Iterator[Way]:
    """Yield all ways to run a stage, as plans of them count."""
    planner, _ = of_stage(plans, begin, end)
    free = solve(planner.posed.problem, 60, planner.posed.fold).choices
    held = find_holdings(planner.posed, free, "adamw")
    early = makers_of(held)
    assert len(early) <= MOST_MAKERS
    seen: set[frozenset[str]] = set()
    for taken in product([False, True], repeat=len(early)):
        asked = {key for key, is_taken in zip(early, taken, strict=True) if is_taken}
        again = keep(held, asked).again
        if again not in seen:
            seen.add(again)
            found = Found(free, DRAWN, again, most_alternatives=0)
            plan = planner.decide(found)
            yield Way(plan.predicted.seconds, peak_bytes(plan, live))


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("live", [1, 3])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["chain", "diamond", "hourglass", "tied"])
def test_the_search_counts_a_stage_as_its_plan_does(
    name: str, count: int, live: int, size: int
) -> None:
    """With whatever of it made again and boxed, to the byte."""
    plans, rng = stages(name, count), random.Random(count)
    last = len(plans.line.forward)
    for begin, end in ((0, last // 2), (last // 3, 2 * last // 3), (last // 2, last)):
        planner, _ = of_stage(plans, begin, end)
        planner = replace(planner, mesh=Mesh(dp=size))
        free = solve(planner.posed.problem, 60, planner.posed.fold).choices
        held = find_holdings(planner.posed, free, "adamw", num_live=live)
        early = sorted(makers_of(held))
        drawn = (rng.sample(early, rng.randint(0, len(early))) for _ in range(4))
        for asked in ((), early, *drawn):
            kept = keep(held, asked)
            plan = planner.decide(Found(free, DRAWN, kept.again, most_alternatives=0))
            assert kept.peak_bytes == peak_bytes(plan, live), (begin, end, asked)


@pytest.mark.parametrize(
    ("name", "count", "live", "place"),
    [
        *[("hourglass", 1, 1, place) for place in ((0, 7), (1, 11), (3, 13))],
        *[
            ("diamond", 2, live, place)
            for live in (1, 2)
            for place in ((0, 9), (4, 14))
        ],
        *[("chain", 2, 2, (0, 8)), ("hourglass", 2, 2, (2, 9)), ("tied", 2, 2, (2, 8))],
    ],
)
def test_no_way_to_keep_a_stage_within_a_limit_is_faster(
    name: str, count: int, live: int, place: tuple[int, int]
) -> None:
    plans = stages(name, count)
    every = list(ways(plans, *place, live))
    most = min(every).num_bytes
    limits = sorted({way.num_bytes for way in every if way.num_bytes < most})
    assert limits
    planner, program = of_stage(plans, *place)
    for limit in {limits[0], limits[len(limits) // 2], limits[-1]}:
        best = min(way.seconds for way in every if way.num_bytes <= limit)
        plan = StageSearch.of(planner, program, Room(limit, live), CLOCK).run()
        assert peak_bytes(plan, live) <= limit
        assert plan.predicted.seconds == pytest.approx(best, rel=1e-9)
    with pytest.raises(NoSolution, match=r"one of the stages.* needs"):
        StageSearch.of(planner, program, Room(limits[0] - 1, live), CLOCK).run()


def test_what_the_search_counts_less_of_is_left_out_and_not_met_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here it does not know that uneven parts are padded where they are gathered."""

    known = Boxings.of

    def unpadded(
        self: Boxings, value: Tensor, made: Placement, want: Placement
    ) -> Boxed:
        return known(self, value, made, want)._replace(padding_bytes=0)

    monkeypatch.setattr(Boxings, "of", unpadded)
    plans = stages("diamond", 1)
    planner, program = of_stage(plans, 4, 7)
    three = replace(planner, mesh=Mesh(dp=3))
    free = StageSearch.of(three, program, None, CLOCK).run()
    choices = solve(three.posed.problem, 60, three.posed.fold).choices
    limit = peak_bytes(free, 1) - 1
    assert keep(find_holdings(three.posed, choices, "adamw"), ()).peak_bytes <= limit
    plan = StageSearch.of(three, program, Room(limit, 1), CLOCK).run()
    assert peak_bytes(plan, 1) <= limit
