"""Placements and what is made again, decided together: against all ways there are."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import NamedTuple

import highspy
import pytest
from tests.compiler.search.all_ways import Run, key_of, possible
from tests.compiler.search.hand_made import RandomModel, TellingModel
from tests.compiler.search.small_problems import small
from tests.slow import slow

from partita.compiler.search import joint, limited
from partita.compiler.search.fold import Fold
from partita.compiler.search.highs import Found, run_highs
from partita.compiler.search.holdings import find_holdings
from partita.compiler.search.joint import Joint, JointOutcome, JointSearch
from partita.compiler.search.keeping import keep
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.solver import solve
from partita.compiler.search.windows import WindowSearch
from partita.compiler.search.worthwhile import everything


class Way(NamedTuple):
    """A way to run a step."""

    seconds: float
    peak: int


def all_ways(posed: Posed, optimizer: str) -> list[Way]:
    runs = [Run(posed, choices, optimizer) for choices in possible(posed.problem)]
    return [
        Way(run.seconds + run.again_seconds(again), run.peak(again))
        for run in runs
        for again in run.ways()
    ]


def limits(ways: list[Way]) -> list[int]:
    """Return the least that any way holds, and more, less than the fastest does."""
    fastest = min(ways).peak
    below = sorted({way.peak for way in ways if way.peak < fastest})
    return below[:: max(1, len(below) // 2)]


def searched(posed: Posed, optimizer: str, limit: int) -> JointOutcome:
    """Search as one integer program, from no row and nothing that is known."""
    fold = Fold.none(posed.problem)
    search = JointSearch(posed, fold, optimizer, limit, everything(fold))
    return search.run((), None, Clock.of(60))


def check(seed: int, make: type[RandomModel] = RandomModel) -> int:
    """Compare under limits that bind; return how many there are."""
    posed, optimizer = small(seed, make)
    ways = all_ways(posed, optimizer)
    binding = limits(ways)
    for limit in binding:
        best = min(way.seconds for way in ways if way.peak <= limit)
        found = searched(posed, optimizer, limit)
        assert found.found is not None
        assert found.found.keeping.peak_bytes <= limit
        assert found.found.seconds == pytest.approx(best, rel=1e-9)
        assert best * (1 - 1e-6) <= found.bound_s <= best * (1 + 1e-9)
        free = solve(posed.problem, 60)
        within = LimitedSearch(posed, free, optimizer, Clock.of(60)).run(limit)
        assert within.is_optimal
        assert within.seconds == pytest.approx(best, rel=1e-6)
    return len(binding)


@pytest.mark.parametrize(
    "seed", [12, 16, 26, 33, 48, 68, *map(slow, (72, 87, 94, 117))]
)
def test_as_fast_as_the_fastest_of_all_that_fits(seed: int) -> None:
    assert check(seed)


@pytest.mark.parametrize("seed", [16, 19, 37, 43, *map(slow, (54, 90, 121))])
def test_outputs_of_the_model_are_let_go_of(seed: int) -> None:
    assert check(seed, TellingModel)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [range(n, n + 20) for n in range(0, 720, 20)])
def test_as_fast_as_the_fastest_on_many(seeds: range) -> None:
    """In all of them more than two hundred problems have limits that bind."""
    assert sum(check(seed) for seed in seeds)


@pytest.mark.parametrize("make", [RandomModel, TellingModel])
@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_what_is_held_is_counted_as_by_a_run(
    seed: int, make: type[RandomModel]
) -> None:
    posed, optimizer = small(seed, make)
    every = possible(posed.problem)
    for choices in every[:: max(1, len(every) // 10)]:
        run, held = (
            Run(posed, choices, optimizer),
            find_holdings(posed, choices, optimizer),
        )
        for again in run.ways():
            keeping = keep(held, {key_of(posed, maker) for maker in again})
            assert keeping.peak_bytes == run.peak(again)
            assert keeping.seconds == pytest.approx(run.again_seconds(again))


def test_rows_that_are_needed_are_there_before_the_integer_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by integer programs, one after another, they take more than twice those."""
    programs: list[Found] = []

    def noted(highs: highspy.Highs) -> Found:
        programs.append(run_highs(highs))
        return programs[-1]

    monkeypatch.setattr(joint, "run_highs", noted)
    counts: list[int] = []
    for foresight in (0.0, 0.3):
        monkeypatch.setattr(joint, "_FORESIGHT", foresight)
        programs.clear()
        for posed, optimizer in map(small, (16, 26, 33)):
            for limit in limits(all_ways(posed, optimizer)):
                searched(posed, optimizer, limit)
        counts.append(len(programs))
    without, foreseen = counts
    assert 2 * foreseen <= without


def test_where_nothing_fits_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    posed, optimizer = small(2)
    least = min(way.peak for way in all_ways(posed, optimizer))
    found = searched(posed, optimizer, least - 1)
    assert found.found is None
    assert found.bound_s == inf
    monkeypatch.setattr(WindowSearch, "improved", None)  # not asked for then
    free = solve(posed.problem, 60)
    within = LimitedSearch(posed, free, optimizer, Clock.of(60)).run(least - 1)
    assert not within.fits
    assert within.bound_s == inf


def test_what_is_not_shown_at_first_is_searched_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The integer program has more of the time once it was near."""
    bounds = iter((0.9,))

    class Short(JointSearch):
        def run(
            self, moments: Collection[int], known: Joint | None, clock: Clock
        ) -> JointOutcome:
            part = next(bounds, None)
            if part is None or known is None:
                return super().run(moments, known, clock)
            return JointOutcome(known, part * known.seconds)

    posed, optimizer = small(87)
    free = solve(posed.problem, 60)
    monkeypatch.setattr(limited, "JointSearch", Short)
    assert LimitedSearch(posed, free, optimizer, Clock.of(60)).run(340).is_optimal


def test_without_time_the_known_stays() -> None:
    posed, optimizer = small(3)
    fold = Fold.none(posed.problem)
    search = JointSearch(posed, fold, optimizer, 1 << 40, everything(fold))
    best = search.run((), None, Clock.of(60)).found
    assert best is not None
    again = JointSearch(posed, fold, optimizer, 1 << 40, everything(fold))
    assert again.run((), best, Clock.of(0)).found == best
