"""At a price of memory, what takes little by itself leads to what holds less."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from tests.compiler.search.test_limited import posed_layers

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search import by_prices
from partita.compiler.search.by_prices import PriceSearch
from partita.compiler.search.keeping import least_keeping
from partita.compiler.search.narrowed import Narrowed
from partita.compiler.search.own_bytes import OwnBytes
from partita.compiler.search.parts import Clock
from partita.compiler.search.problem import cost_of
from partita.compiler.search.solver import solve
from partita.compiler.search.within_limit import Limited
from partita.compiler.search.worthwhile import everything

_NO_LIMIT = 1 << 40


class Prices(PriceSearch):
    """Tells what is found among one part of a problem or another."""

    def begin(self) -> Limited:
        """Return what is fastest; memory is short where it holds most."""
        self._keep_to(_NO_LIMIT)
        most = self._keep(self.free.choices, _NO_LIMIT, 0.0)
        self.moments.append(most.keeping.moment)
        return most

    def kept(self, limit: int) -> Limited:
        """Return what is fastest with as much made again as a limit takes."""
        return self._keep(self.free.choices, limit, self.free.bound_s)

    def peak(self, price: float, limit: int, best: Limited, among: Narrowed) -> int:
        """Return what is held at most by what is cheapest at a price."""
        found = self._at(price, limit, best, self.clock, among)
        return found.keeping.peak_bytes

    def short(self, best: Limited, limit: int) -> int:
        """Return when memory is short once as much as may be is made again."""
        held = self._met.held_by(best.choices)
        return least_keeping(held, best.keeping, limit, Clock.of(60)).moment

    def lean(self, limit: int, best: Limited) -> Narrowed:
        """Return what takes little by itself."""
        return self._lean(limit, best)


def prices(mesh: Mesh, layers: int) -> Prices:
    posed = posed_layers(mesh, layers)
    free = solve(posed.problem, 60, fold=posed.fold)
    return Prices(posed, free, "adamw", Clock.of(60))


def test_placements_do_not_hold_more_where_memory_has_no_price() -> None:
    search = prices(Mesh(tp=4), 3)
    fastest = search.begin()
    limit = fastest.keeping.peak_bytes // 2
    whole = Narrowed.to(search.posed, search.fold, everything(search.fold))
    among_all = search.peak(6.4, limit, fastest, whole)
    among_lean = search.peak(6.4, limit, fastest, search.lean(limit, fastest))
    assert among_lean < 0.9 * among_all


def test_an_assignment_of_equal_blocks_alike_is_left_in() -> None:
    search = prices(Mesh(tp=2), 6)
    fastest = search.begin()
    own = OwnBytes(search.posed, search.fold, "adamw")
    choices = [*fastest.choices]
    for of_class, members in zip(own.of_classes, search.fold.members, strict=True):
        if len(members) > 1:
            choices[members[0]] = int(of_class.argmin())
    unlike = replace(fastest, choices=(*choices,))
    lean = search.lean(1, unlike)
    for kept, members in zip(lean.kept, search.fold.members, strict=True):
        assert fastest.choices[members[0]] in kept
    found = solve(lean.fold.problem, 60, fold=lean.fold)
    least = cost_of(search.posed.problem, lean.widened(found.choices))
    assert fastest.seconds * (1 - 1e-9) <= least, "it is a part of the problem"


def test_equal_blocks_differ_where_that_is_faster() -> None:
    search = prices(Mesh(tp=2), 6)
    fastest = search.begin()
    least = search.peak(400.0, 1, fastest, search.lean(1, fastest))
    limit = int(least + 0.3 * (fastest.keeping.peak_bytes - least))
    start = search.kept(limit)
    alike = search.by_prices(limit, start)
    apart = search.apart(Clock.of(60)).by_prices(limit, start)
    assert alike.fits
    assert apart.fits
    assert apart.keeping.peak_bytes <= limit
    assert apart.seconds < 0.999 * alike.seconds
    firsts = [apart.choices[members[0]] for members in search.fold.members]
    assert search.fold.unfold(firsts) != apart.choices


@pytest.mark.parametrize(("mesh", "gain"), [("tp=4", 0.95), ("dp=2,tp=2", 1.0)])
def test_memory_that_has_a_price_at_one_moment_alone(
    monkeypatch: pytest.MonkeyPatch, mesh: str, gain: float
) -> None:
    """What is held too much at another is made again: bounds and plans gain by it."""
    found: list[Limited] = []
    for most in (0, 3):
        monkeypatch.setattr(by_prices, "_MOST_ALONE", most)
        search = prices(Mesh.parse(mesh), 3)
        fastest = search.begin()
        least = search.peak(400.0, 1, fastest, search.lean(1, fastest))
        limit = int(0.5 * (least + fastest.keeping.peak_bytes))
        start = search.kept(limit)
        search.moments = [fastest.keeping.moment, search.short(start, limit)]
        found.append(search.by_prices(limit, start))
    without, alone = found
    assert alone.keeping.peak_bytes <= limit
    assert alone.seconds <= gain * without.seconds
    assert alone.bound_s > 1.01 * without.bound_s
    assert len(alone.at) == 1 < len(without.at)


@dataclass
class Noted(Prices):
    """Notes which prices are tried, and whether among what is lean."""

    tried: list[tuple[float, bool]] = field(default_factory=list[tuple[float, bool]])

    def _at(self, *given: Any, **named: Any) -> Limited:
        price, _, _, _, *lean = given
        self.tried.append((price, lean not in ([], [None])))
        return super()._at(*given, **named)


def begun(times: float) -> tuple[Noted, int, Limited]:
    """Return a search, a limit so many times below what is fastest, and that."""
    posed = posed_layers(Mesh(tp=4), 6)
    free = solve(posed.problem, 60, fold=posed.fold)
    search = Noted(posed, free, "adamw", Clock.of(60))
    fastest = search.begin()
    limit = int(fastest.keeping.peak_bytes / times)
    assert not search.kept(limit).fits
    return search, limit, replace(fastest, fits=False)


@pytest.mark.parametrize(("times", "is_lean"), [(1.5, False), (3.0, True)])
def test_far_over_a_limit_prices_are_high_at_once_and_lean_comes_first(
    times: float, is_lean: bool
) -> None:
    search, limit, fastest = begun(times)
    search.by_prices(limit, fastest)
    price, among_lean = search.tried[0]
    assert price == pytest.approx(0.1 * times**2, rel=0.01)
    assert among_lean is is_lean
    assert {lean for _, lean in search.tried} == {False, True}, "then the other"


def test_of_many_nodes_what_the_highest_price_leaves_far_over_is_not_searched_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(by_prices, "MOST_NODES", 10)
    search, limit, fastest = begun(1000.0)
    found = search.by_prices(limit, fastest)
    assert search.is_far(found, limit)
    assert set(search.tried) == {(409.6, True)}


def test_of_many_nodes_the_highest_price_is_tried_until_all_moments_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(by_prices, "MOST_NODES", 10)
    search, limit, fastest = begun(3.0)
    search.clock = Clock.of(0.0)
    found = search.by_prices(limit, fastest)
    assert found.fits
    assert set(search.tried) == {(409.6, True)}, "later there is no time"
    in_time, limit, fastest = begun(3.0)
    assert in_time.by_prices(limit, fastest).seconds <= found.seconds
    assert len(set(in_time.tried)) > 2, "then prices as of few nodes"
