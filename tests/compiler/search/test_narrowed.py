"""A narrowed problem has all that is faster than what is known, and less else."""

from __future__ import annotations

import pytest
from tests.compiler.search.all_ways import possible
from tests.compiler.search.small_problems import small
from tests.compiler.search.test_limited import posed_layers

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.narrowed import Narrowed
from partita.compiler.search.parts import Clock
from partita.compiler.search.problem import cost_of
from partita.compiler.search.solver import solve
from partita.compiler.search.worthwhile import everything


@pytest.mark.parametrize("seed", range(4))
def test_all_that_is_faster_is_left_in(seed: int) -> None:
    posed, _ = small(seed)
    costs = {ways: cost_of(posed.problem, ways) for ways in possible(posed.problem)}
    known_s = 1.2 * min(costs.values())
    slow = max(costs, key=costs.__getitem__)
    whole = Narrowed.to(posed, posed.fold, everything(posed.fold))
    narrow = whole.below(known_s, [slow], Clock.of(60))
    left = {
        narrow.widened(ways): cost_of(narrow.posed.problem, ways)
        for ways in possible(narrow.posed.problem)
    }
    assert slow in left
    assert left.items() <= costs.items(), "the same assignments cost the same"
    assert {ways for ways, cost in costs.items() if cost < known_s} <= left.keys()


def test_what_costs_too_much_is_left_out_of_all_equal_blocks() -> None:
    posed = posed_layers(Mesh(dp=2, tp=2), 6)
    assert posed.fold.has_classes
    free = solve(posed.problem, 60, fold=posed.fold)
    whole = Narrowed.to(posed, posed.fold, everything(posed.fold))
    known_s = 1.01 * free.seconds
    narrow = whole.below(known_s, [free.choices], Clock.of(60))
    assert sum(map(len, narrow.kept)) < 0.8 * sum(map(len, whole.kept))
    found = solve(narrow.fold.problem, 60, fold=narrow.fold)
    assert found.seconds == pytest.approx(free.seconds)
    assert cost_of(posed.problem, narrow.widened(found.choices)) == found.seconds
    assert whole.widened(free.choices) == free.choices


def test_it_serves_for_nearly_as_many_seconds() -> None:
    posed = posed_layers(Mesh(tp=2))
    first = (0,) * len(posed.problem.nodes)
    whole = Narrowed.to(posed, posed.fold, everything(posed.fold))
    narrow = whole.below(1.0, [first], Clock.of(60))
    assert narrow.serves(1.0)
    assert narrow.serves(1.01)
    assert not narrow.serves(1.05), "what takes so long may be left out of it"
    assert not narrow.serves(0.9), "it has much that need not be looked at"
