"""What is not worth looking at belongs to nothing that fits and is faster."""

from __future__ import annotations

import pytest
from tests.compiler.search.all_ways import Run, possible
from tests.compiler.search.random_problems import choice, node, problem
from tests.compiler.search.small_problems import small

from partita.compiler.search.call_times import CallTimes
from partita.compiler.search.fold import Fold
from partita.compiler.search.memory_price import MemoryPrice
from partita.compiler.search.parts import Clock
from partita.compiler.search.problem import Tie
from partita.compiler.search.worthwhile import everything, worthwhile


@pytest.mark.parametrize("price", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("seed", range(0, 12, 3))
def test_what_fits_and_is_faster_is_worthwhile(seed: int, price: float) -> None:
    posed, optimizer = small(seed)
    runs = [Run(posed, choices, optimizer) for choices in possible(posed.problem)]
    ways = [
        (run.seconds + run.again_seconds(again), run.peak(again), choices)
        for choices, run in zip(possible(posed.problem), runs, strict=True)
        for again in run.ways()
    ]
    fastest = min(ways)[0]
    peaks = sorted(peak for _, peak, _ in ways)
    limit, times = peaks[len(peaks) // 2], CallTimes(posed)
    rate = price * fastest / peaks[-1]
    every = [*(call.time for call in times.calls.values()), times.leaving]
    prices = MemoryPrice(posed, optimizer, every[::2])
    fold = Fold.none(prices.problem(rate))
    fits = sorted(way for way in ways if way[1] <= limit)
    for known, *_ in (fits[0], fits[len(fits) // 2], fits[-1]):
        worth, bound = worthwhile(fold, known, rate * limit, Clock.of(60))
        assert bound <= fits[0][0] * (1 + 1e-9)
        for seconds, _, choices in fits:
            if seconds < known * (1 - 1e-9):
                assert all(own[at] for own, at in zip(worth, choices, strict=True))


def test_what_costs_too_much_is_left_out() -> None:
    posed, _ = small(0)
    fold = Fold.none(posed.problem)
    best = min(
        (Run(posed, choices, "sgd").seconds, choices)
        for choices in possible(posed.problem)
    )
    worth, bound = worthwhile(fold, best[0], 0.0, Clock.of(60))
    assert bound == pytest.approx(best[0])
    every = sum(int(own.sum()) for own in everything(fold))
    assert sum(int(own.sum()) for own in worth) < every


def test_what_nothing_goes_with_is_left_out() -> None:
    """No output leaves as the second choice stores it."""
    stored = node("w", (), choice("", "B", 1.0), choice("", "S(0)", 0.0))
    leaves = node("gradient", ((0, 0),), choice("B", "", 0.0))
    fold = Fold.none(problem(stored, leaves, ties=(Tie(0, 1),)))
    worth, bound = worthwhile(fold, 9.0, 0.0, Clock.of(60))
    assert [own.tolist() for own in worth] == [[True, False], [True]]
    assert bound == pytest.approx(1.0)


def test_everything_is_all_choices_of_every_class() -> None:
    posed, _ = small(0)
    found = everything(Fold.none(posed.problem))
    assert [own.tolist() for own in found] == [
        [True] * len(node.choices) for node in posed.problem.nodes
    ]
