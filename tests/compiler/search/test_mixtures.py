"""Assignments that are one in a stretch of a model and another one outside of it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.compiler.search.test_limited import posed_layers

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search.by_prices import PRICES_IF_KEPT, PriceSearch
from partita.compiler.search.mixtures import Mixtures
from partita.compiler.search.narrowed import Narrowed
from partita.compiler.search.parts import Clock
from partita.compiler.search.problem import cost_of
from partita.compiler.search.solver import solve
from partita.compiler.search.within_limit import Limited
from partita.compiler.search.worthwhile import everything

_NO_LIMIT = 1 << 40


class Kept(PriceSearch):
    """Counts what assignments hold, all of it kept, and finds lean ones."""

    def counted(self, choices: tuple[int, ...], limit: int) -> Limited:
        """Return an assignment, none of which is made again to keep to the limit."""
        found = self._keep(choices, _NO_LIMIT, 0.0)
        return replace(found, fits=found.keeping.peak_bytes <= limit)

    def lean(self, best: Limited) -> Limited:
        """Return what is placed at a high price of memory, little slower."""
        whole = Narrowed.to(self.posed, self.fold, everything(self.fold))
        among = whole.below(best.seconds, [best.choices], self.clock)
        return self._at_if_kept(PRICES_IF_KEPT[-1], _NO_LIMIT, among)


@cache
def ends() -> tuple[Kept, int, Limited, Limited]:
    """Return a search, a limit, what is too much for it and what fits."""
    posed = posed_layers(Mesh(tp=2), 6)
    free = solve(posed.problem, 60)
    search = Kept(posed, free, "adamw", Clock.of(60))
    most = search.counted(free.choices, _NO_LIMIT)
    search.moments.append(most.keeping.moment)
    lean = search.lean(most)
    assert lean.keeping.peak_bytes < most.keeping.peak_bytes
    limit = (lean.keeping.peak_bytes + most.keeping.peak_bytes) // 2
    fast, fitting = (search.counted(one.choices, limit) for one in (most, lean))
    return search, limit, fast, fitting


def test_what_is_between_fits_and_is_faster() -> None:
    search, limit, fast, lean = ends()
    assert lean.fits > fast.fits

    def counted(choices: tuple[int, ...]) -> Limited:
        return search.counted(choices, limit)

    found = Mixtures(search.posed).best(fast, lean, counted, Clock.of(60))
    assert found.fits
    assert fast.seconds < found.seconds < lean.seconds
    taken = zip(found.choices, fast.choices, lean.choices, strict=True)
    assert all(own in pair for own, *pair in taken)
    assert found.choices not in (fast.choices, lean.choices)


@pytest.mark.parametrize("is_few", [True, False])
def test_a_stretch_in_the_middle_is_found(is_few: bool) -> None:
    search, _, fast, lean = ends()
    problem = search.posed.problem
    unlike = [at for at, own in enumerate(fast.choices) if own != lean.choices[at]]
    third = {at for at in unlike if "layers.2." in problem.nodes[at].key}
    needed = [at for at in unlike if (at in third) == is_few]

    def counted(choices: tuple[int, ...]) -> Limited:
        """Say that what is lean where it must be fits."""
        fits = all(choices[at] == lean.choices[at] for at in needed)
        return Limited(choices, lean.keeping, cost_of(problem, choices), fits, 0.0)

    found = Mixtures(search.posed).best(fast, lean, counted, Clock.of(60))
    assert found.fits
    wanted = [*fast.choices]
    for at in needed:
        wanted[at] = lean.choices[at]
    assert found.seconds == pytest.approx(cost_of(problem, wanted), rel=1e-12)


@pytest.mark.parametrize("has_time", [False, True])
def test_nothing_is_mixed_with_what_fits_or_takes_longer(has_time: bool) -> None:
    search, limit, _, lean = ends()
    slow = Limited(lean.choices, lean.keeping, 2 * lean.seconds, False, 0.0)

    def never(_: tuple[int, ...]) -> Limited:
        raise AssertionError("counted")

    clock = Clock.of(60 if has_time else 0)
    mixtures = Mixtures(search.posed)
    assert mixtures.best(slow, lean, never, clock) is lean
    assert (
        mixtures.best(search.counted(lean.choices, limit), lean, never, clock) is lean
    )
