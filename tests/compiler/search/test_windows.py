"""Windows improve an assignment, and leave the best as it is."""

from __future__ import annotations

import random
from functools import cache

import pytest
from tests.compiler.search.test_fold_models import posed

from partita.compiler.search.draw import draw_choices
from partita.compiler.search.fold import Fold
from partita.compiler.search.holdings import find_holdings
from partita.compiler.search.joint import Joint, JointSearch
from partita.compiler.search.keeping import keep
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.problem import cost_of
from partita.compiler.search.solver import Solution, solve
from partita.compiler.search.windows import WindowSearch
from partita.compiler.search.worthwhile import everything


@cache
def free() -> Solution:
    problem = posed("gpt2", 1).problem
    return solve(problem, 60, fold=Fold.of(problem))


def start(limit: int) -> tuple[Joint, int]:
    """Return the fastest assignment with as much made again as helps, and its peak."""
    search = LimitedSearch(posed("gpt2", 1), free(), "adamw", Clock.of(60))
    kept = search._keep(free().choices, limit, 0.0)  # pyright: ignore[reportPrivateUsage]
    return Joint(kept.choices, kept.keeping, kept.seconds), kept.keeping.moment


def test_a_poor_assignment_becomes_better_and_still_fits() -> None:
    whole = posed("gpt2", 1)
    best, moment = start(1 << 40)
    drawn = draw_choices(random.Random(0), whole)
    kept = keep(find_holdings(whole, drawn, "adamw"), ())
    poor = Joint(tuple(drawn), kept, cost_of(whole.problem, drawn) + kept.seconds)
    limit = max(kept.peak_bytes, best.keeping.peak_bytes)
    found = WindowSearch(whole, "adamw", limit, (moment,)).improved(poor, Clock.of(4))
    assert found.keeping.peak_bytes <= limit
    assert found.seconds < 0.8 * poor.seconds


def test_what_is_best_stays_as_it_is() -> None:
    best, moment = start(1 << 40)
    windows = WindowSearch(posed("gpt2", 1), "adamw", 1 << 40, (moment,))
    found = windows.improved(best, Clock.of(2.0))
    assert found.seconds == pytest.approx(best.seconds)


def test_nothing_is_made_again_anew_outside_of_a_window() -> None:
    best, _ = start(int(0.95 * start(1 << 40)[0].keeping.peak_bytes))
    assert best.keeping.again
    whole = posed("gpt2", 1)
    fold = Fold.none(whole.problem)
    allowed = everything(fold)
    for own, choice in zip(allowed, best.choices, strict=True):
        own[:] = False
        own[choice] = True
    search = JointSearch(whole, fold, "adamw", 1 << 40, allowed)
    search.keep(best, set())
    kept = search.run((), None, Clock.of(10.0)).found
    assert kept is not None
    assert kept.choices == best.choices
    assert kept.keeping.again == best.keeping.again
    free_again = JointSearch(whole, fold, "adamw", 1 << 40, allowed)
    other = free_again.run((), None, Clock.of(10.0)).found
    assert other is not None
    assert other.seconds < kept.seconds


def test_holding_too_much_has_its_price() -> None:
    best, _ = start(1 << 40)
    limit = best.keeping.peak_bytes
    assert best.cost(limit, 5.0) == best.seconds
    assert best.cost(limit // 2, 5.0) == pytest.approx(best.seconds + 5.0, rel=1e-3)
