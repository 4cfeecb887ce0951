"""The fastest plan that a memory limit allows: placements, and what is made again.

Prices of memory (by_prices.py) come first. Then choices that cannot belong to anything
faster go (worthwhile.py), and an integer program decides placements and what is made
again together (joint.py): of a large problem among the choices that prices led to.

All of that has equal blocks placed alike. Where memory is short, the fastest is often
that some of them take less memory and the others less time. So in a problem of few
nodes these may differ at prices of memory, too. What fits is mixed with what is faster
(mixtures.py) and made better window by window (windows.py); in the end each block may
take any of the choices met on the way, by an integer program over all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf

from partita.compiler.search.by_prices import MOST_NODES, PRICES_IF_KEPT, PriceSearch
from partita.compiler.search.fold import Fold
from partita.compiler.search.joint import Joint, JointSearch
from partita.compiler.search.keeping import least_keeping
from partita.compiler.search.mixtures import Mixtures
from partita.compiler.search.model import Bools
from partita.compiler.search.parts import THREADS, Clock
from partita.compiler.search.solver import HIGHS
from partita.compiler.search.wanted import ANY
from partita.compiler.search.windows import WindowSearch
from partita.compiler.search.within_limit import Limited
from partita.compiler.search.worthwhile import (
    num_pairs,
    with_known,
    worthwhile,
)

_LEAST_S = 2.0  # to know what an assignment holds at the least, where that is asked
_FIRST_SHARE = 0.1  # of the time that is left, at the most
_LEAST_SHARE = 0.3  # of the time that is left, for that of all that were met
_SHARE = 0.5  # of the time that is left, for one search of placements
_JOINT_SHARE = 0.25  # of the time that is left, for the integer program
_LAST_SHARE = 0.5  # of the time that is left, for the same once more
_SMALL_SHARE = 0.9  # of the time that is left, for one that is likely to end
_NEAR = 0.8  # of what is known, from where a bound may be brought to it in time
_MOST_ENTRIES = 300_000  # pairs of choices that an integer program is written for
_MOST_APART = 20_000  # of them where each block is by itself
_FEW_ENTRIES = 5_000  # of them, where the program is likely to end
# Writing down a node by itself, at four moments, takes 0.3 to 0.8 ms (stacks of 24 to
# 384 layers, 2-core AMD EPYC VM) and is ended by no clock: of more it takes too long.
_MOST_NODES_APART = 10_000
_APART_SHARE = 0.3  # of the time that is left, for prices where equal blocks differ
_MIXTURES_SHARE = 0.4  # of the time that is left
_WINDOWS_SHARE = 0.5  # of the time that is left, for windows from one start
_NEARLY = 1.25  # of the limit, what windows may begin with
_LITTLE = 1.002  # times what is known: others, where the plan of that is too large
_MOST_OTHERS = 3


@dataclass
class LimitedSearch(PriceSearch):
    """The search of one problem under one limit after another, as its prices are."""

    _found: dict[tuple[int, ...], None] = field(
        default_factory=dict[tuple[int, ...], None]
    )
    _is_large: bool = False  # too much for an integer program

    def run(self, limit: int) -> Limited:
        """Return the fastest assignment found that holds at most ``limit`` bytes."""
        best = self._keep(self.free.choices, limit, self.free.bound_s)
        if best.is_optimal or self._is_too_slow(best):
            return best
        is_asked = self.wanted == ANY
        if is_asked and not (best.fits or self.moments):
            time_s = min(_LEAST_S, _FIRST_SHARE * self.clock.left_s)
            least = self._with_least(best, limit, time_s)
            # What is short at others may be made again.
            self.moments.append(least.keeping.moment)
            best = best.better(least)
            if limit < self.state_bytes:
                return self._least(limit, best)
        for choices in self._found:  # under another limit; with more made again
            best = best.better(self._keep(choices, limit, -inf))
        whole = self.clock
        if is_asked and not best.fits:
            self.clock = Clock.of((1 - _LEAST_SHARE) * whole.left_s)
        found = self._search(limit, best)
        self.clock = whole
        found = self._one_by_one(limit, found)
        if is_asked and not (found.fits or self.is_far(found, limit)):
            found = self._least(limit, found)
        self._found[found.choices] = None
        return found

    def fitting(self, limit: int) -> list[Limited]:
        """Return what prices of memory led to and keeps to it, the fastest first."""
        met = (self._keep(own, limit, -inf) for own in self._met.leanest(limit))
        return sorted((one for one in met if one.fits), key=lambda one: one.seconds)

    def others(self, limit: int, than: Sequence[int], known_s: float) -> list[Limited]:
        """Return a few others of those that are little slower than what is known."""
        others = (one for one in self.fitting(limit) if one.choices != than)
        slower = [one for one in others if one.seconds <= _LITTLE * known_s]
        return slower[:_MOST_OTHERS]

    def _least(self, limit: int, best: Limited) -> Limited:
        """Return what holds the least of all that was met, with much made again.

        At high prices of memory placements hold about as little as any.
        """
        clock = Clock.of(_SHARE * self.clock.left_s)
        lean = self._lean(limit, best)
        for price in PRICES_IF_KEPT[::-1]:
            best = best.better(self._at(price, limit, best, clock, lean))
            if best.fits or clock.left_s <= 0:
                break
        met = self._met.leanest(limit)
        for number, choices in enumerate(met):
            if best.fits or self.clock.left_s <= 0:
                break
            found = self._keep(choices, limit, -inf)
            share_s = self.clock.left_s / (len(met) - number)
            best = best.better(self._with_least(found, limit, share_s))
        return best

    def _with_least(self, found: Limited, limit: int, time_s: float) -> Limited:
        """Return an assignment with what to make again so that it holds the least."""
        held, clock = self._met.held_by(found.choices), Clock.of(time_s)
        keeping = least_keeping(held, found.keeping, limit, clock)
        seconds = found.seconds - found.keeping.seconds + keeping.seconds
        fits = keeping.peak_bytes <= limit
        return replace(found, keeping=keeping, seconds=seconds, fits=fits)

    def _search(self, limit: int, best: Limited) -> Limited:
        if not self.moments:
            self.moments.append(best.keeping.moment)
        best = self.by_prices(limit, best)
        if self._is_too_slow(best):
            return best
        if self.wanted.is_rough or limit < self.state_bytes:
            return best
        best = self._one_by_one(limit, self._by_prices_apart(limit, best))
        bound_s = best.bound_s  # by prices; that of the program is of blocks alike
        if not best.is_optimal:
            best = self._jointly(limit, best, _JOINT_SHARE)
            is_hopeless = best.bound_s == inf or self._is_too_slow(best)
            if is_hopeless and not self.fold.has_classes:
                return best  # nothing fits that is fast enough
        mixed = self._by_mixtures(limit, best)
        if mixed.seconds < best.seconds:
            best = self._by_windows(limit, mixed, (mixed,))
        elif not best.is_optimal:
            free = self._keep(self.free.choices, limit, -inf)
            found = self._by_windows(limit, best, (free, best))
            is_near = found.fits and found.bound_s >= _NEAR * found.seconds
            if found is not best or (is_near and not self._is_large):
                best = self._jointly(limit, found, _LAST_SHARE)
        return self._apart(limit, best, bound_s)

    def _one_by_one(self, limit: int, best: Limited) -> Limited:
        """Let equal blocks differ in what is made again of what fits."""
        if not best.fits or self.wanted.is_rough or self.clock.left_s <= 0:
            return best
        again = self._met.one_by_one(best.choices, best.keeping, limit, self.clock)
        seconds = best.seconds - best.keeping.seconds + again.seconds
        bound = min(best.bound_s, seconds)
        return replace(best, keeping=again, seconds=seconds, bound_s=bound)

    def _by_prices_apart(self, limit: int, best: Limited) -> Limited:
        """Let equal blocks differ in what prices of memory lead to."""
        few = len(self._nodes) <= MOST_NODES
        if best.is_optimal or not (few and self.fold.has_classes):
            return best
        clock = Clock.of(_APART_SHARE * self.clock.left_s)
        found = self.apart(clock).by_prices(limit, replace(best, bound_s=-inf))
        return replace(found, bound_s=best.bound_s, price=best.price, at=best.at)

    def _jointly(self, limit: int, best: Limited, share: float) -> Limited:
        """Search placements and what is made again together, by an integer program."""
        bound, allowed = best.bound_s, self._may_fit
        known: Joint | None = None
        if best.fits:
            known = Joint(best.choices, best.keeping, best.seconds)
        below_s = min(self.wanted.below_s, best.seconds if best.fits else inf)
        if below_s < inf:
            fold = self._at_price.fold(self.posed, best.at, best.price)
            paid_s = best.price * limit
            worth, least = worthwhile(fold, below_s, paid_s, self.clock)
            bound = max(bound, least)
            both = [own & fits for own, fits in zip(worth, allowed, strict=True)]
            allowed = with_known(both, self.fold, best.choices)
        if bound >= below_s:
            return replace(best, bound_s=min(bound, below_s))
        count = num_pairs(self.fold, allowed)
        self._is_large = count > _MOST_ENTRIES
        if self._is_large:
            allowed = self._met.choices(self.fold, best.choices)
            count = num_pairs(self.fold, allowed)
        if self.clock.left_s <= 0 or count > _MOST_ENTRIES:
            return replace(best, bound_s=bound)
        search = self._program(self.fold, limit, allowed, self.wanted.below_s)
        share = max(share, _SMALL_SHARE) if count <= _FEW_ENTRIES else share
        clock = Clock.of(share * self.clock.left_s)
        found = search.run(self.moments, known, clock)
        if not self._is_large:
            bound = max(bound, min(found.bound_s, self.wanted.below_s))
        if found.found is None:
            return replace(best, bound_s=bound, solver=HIGHS)
        bound = min(bound, found.found.seconds)
        return Limited(*found.found, True, bound, HIGHS, best.price, best.at)

    def _program(
        self, fold: Fold, limit: int, allowed: Sequence[Bools], below_s: float = inf
    ) -> JointSearch:
        whole = self.posed, fold, self.optimizer, limit, allowed, THREADS
        return JointSearch(*whole, below_s=below_s, num_live=self.num_live)

    def _apart(self, limit: int, best: Limited, bound_s: float) -> Limited:
        """Let equal blocks differ, in choices that were met before."""
        if not self._may_differ(best):
            return best
        apart = Fold.none(self.posed.problem)
        allowed = self._met.choices(apart, best.choices)
        if self.clock.left_s <= 0 or num_pairs(apart, allowed) > _MOST_APART:
            return best
        search = self._program(apart, limit, allowed)
        known = Joint(best.choices, best.keeping, best.seconds)
        clock = Clock.of(_JOINT_SHARE * self.clock.left_s)
        found = search.run(self.moments, known, clock).found
        if found is None or found.seconds >= best.seconds:
            return best
        bound = min(bound_s, found.seconds)
        return Limited(*found, True, bound, HIGHS, best.price, best.at)

    def _by_mixtures(self, limit: int, best: Limited) -> Limited:
        """Let a part of the model choose as something faster does that holds more."""
        if not self._may_differ(best):
            return best
        clock = Clock.of(_MIXTURES_SHARE * self.clock.left_s)
        counted = partial(self._keep, limit=limit, bound_s=-inf)
        for fast in map(counted, self._met.leanest(limit)):
            best = self._mixtures.best(fast, best, counted, clock)
        return best

    def _may_differ(self, best: Limited) -> bool:
        """Whether what fits may become faster where equal blocks choose otherwise."""
        is_done = best.is_optimal and not self.fold.has_classes
        return best.fits and not is_done and len(self._nodes) <= _MOST_NODES_APART

    @cached_property
    def _mixtures(self) -> Mixtures:
        return Mixtures(self.posed)

    def _by_windows(
        self, limit: int, best: Limited, starts: Sequence[Limited]
    ) -> Limited:
        """Improve what fits, or nearly, window by window; the first gain is enough."""
        if len(self._nodes) > MOST_NODES:
            return best
        windows = WindowSearch(
            self.posed, self.optimizer, limit, tuple(self.moments), self.num_live
        )
        for start in starts:
            if start.keeping.peak_bytes > _NEARLY * limit:
                continue
            clock = Clock.of(_WINDOWS_SHARE * self.clock.left_s)
            known = Joint(start.choices, start.keeping, start.seconds)
            found = windows.improved(known, clock)
            fits = found.keeping.peak_bytes <= limit
            if fits and (not best.fits or found.seconds < best.seconds):
                bound = min(best.bound_s, found.seconds)
                return Limited(*found, True, bound, HIGHS, best.price, best.at)
        return best
