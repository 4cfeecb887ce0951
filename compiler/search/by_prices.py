"""Placements within a memory limit, by prices of memory alone.

For a few prices of memory, the cheapest placements are searched (memory_price.py) among
choices that may fit by themselves and belong to something faster than what is known
(narrowed.py); for each of these, what to make again so that they keep to the limit
(keeping.py). The price is raised until placements fit, from the higher a one on, the
further the plan without one is over the limit; then prices near that of the fastest
that fits are tried; where placements fit without a price, prices near that of the best
bound. Each price gives a lower bound, too. Of many nodes, far over a limit, the highest
price comes first: where it is of no help, nothing else is tried.

Memory has a price at a few moments alone. The higher it is, the more do placements hold
at others, where that makes room at those. So the same is searched among what takes
little by itself, too: there is no such other moment then. What is short at some of the
moments may be made again for less than placements cost that hold less there. So each of
the last is tried with a price of its own and none at the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf

from partita.compiler.search.at_price import AtPrice
from partita.compiler.search.build import build_model
from partita.compiler.search.fold import Fold
from partita.compiler.search.memory_price import MemoryPrice
from partita.compiler.search.met import Met
from partita.compiler.search.model import Bools
from partita.compiler.search.narrowed import Narrowed
from partita.compiler.search.own_boxings import WithinBytes
from partita.compiler.search.own_bytes import OwnBytes
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import SearchNode, cost_of
from partita.compiler.search.solver import Solution
from partita.compiler.search.wanted import ANY, Wanted
from partita.compiler.search.within_limit import (
    STEP,
    Limited,
    nearer_the_least,
    nearer_the_top,
)

PRICES_IF_KEPT = (0.8, 6.4, 51.2, 409.6)
"""Of memory, as if nothing could be made again: where all others hold too much.

At the last, placements hold about as little as any: no higher price is tried.
"""

MOST_NODES = 1000
"""Of a problem of which all is tried: nodes that choose by themselves, windows, and
prices where the highest leaves much more than a limit."""

_FIRST = 0.1  # of the seconds and bytes that the plan without a limit takes
_FAR = 1.25  # times a limit: what holds more is far from it
_LEAN_FIRST = 2.0  # times a limit: from there on what is lean is searched first
_POWER = 2  # of how often it is over the limit: the first price is that much higher
_MOST_RAISES = 5
_OF_USE = 0.9  # of what was held: at most, for another try far over a limit
_MOST_LEANEST = 3  # times that what is lean is searched at the highest price
_MOST_NARROWING = 1.0  # at higher prices hardly a choice is left out
_MOST_ALONE = 3  # moments at which memory has a price alone
_PRICES_ALONE = 3  # at each of them
_MOST_MIDDLES = 3  # prices near that of the fastest that fits
_MOST_TOPS = 4  # prices near that of the best bound, where none is needed to fit
_SHARE = 0.5  # of the time that is left, for one search of placements
_PRICES_SHARE = 0.5  # of the time that is left, for prices near another
_LEAN = 0.9  # how near to the least that a call may take, between a limit and that
_MUCH = 2.0  # times what is free; of bounds above it, it is asked whether all is less


@dataclass
class PriceSearch:
    """The search of one problem under one limit after another.

    What a price of memory led to is kept, so that a second limit takes little.

    Attributes:
        posed: the problem.
        free: its fastest assignment without a limit.
        optimizer: what holds moments of every parameter.
        clock: when to end.
        wanted: roughly, prices of memory are all that is tried.
        num_live: microbatches of which a rank holds what the backward needs.
        moments: at which memory has been short so far.
    """

    posed: Posed
    free: Solution
    optimizer: str
    clock: Clock
    wanted: Wanted = ANY
    num_live: int = 1
    moments: list[int] = field(default_factory=list[int])
    _limit: float = -inf  # the largest so far
    _may_fit: tuple[Bools, ...] = ()  # by itself, per class
    _within: Narrowed = field(init=False)  # to that
    _narrowed: Narrowed | None = None

    @cached_property
    def fold(self) -> Fold:
        """The problem's repeated blocks."""
        return self.posed.fold

    def apart(self, clock: Clock) -> PriceSearch:
        """Return the same search where equal blocks may differ."""
        whole = self.posed, self.free, self.optimizer, clock, self.wanted
        found = PriceSearch(*whole, self.num_live, self.moments)
        found.fold, found._met = Fold.none(self.posed.problem), self._met
        return found

    @property
    def _nodes(self) -> tuple[SearchNode, ...]:
        return self.posed.problem.nodes

    @cached_property
    def _met(self) -> Met:
        return Met(self.posed, self.optimizer, self.fold.class_of, self.num_live)

    @cached_property
    def state_bytes(self) -> int:
        """The least that what stays and what is fed takes of a rank: a bound."""
        return self._own_bytes.state_bytes

    def _is_too_slow(self, best: Limited) -> bool:
        """Whether nothing that fits takes less than is wanted, or nothing fits."""
        least_s = best.bound_s
        return self.is_over_all(least_s) or least_s >= self.wanted.below_s

    def is_over_all(self, bound_s: float) -> bool:
        """Whether what fits would take more than any assignment does: nothing fits."""
        return bound_s > self.free.seconds * _MUCH and bound_s > self._most_s

    @cached_property
    def _most_s(self) -> float:
        """No assignment takes more, with all of it made again."""
        return 2 * build_model(self.fold).most_cost()

    def is_far(self, found: Limited, limit: int) -> bool:
        """Whether, of many nodes, what holds least is far from keeping to a limit."""
        is_large = len(self._nodes) > MOST_NODES
        return is_large and found.keeping.peak_bytes > _FAR * limit

    def by_prices(self, limit: int, best: Limited) -> Limited:
        """Return the best that prices of memory lead to, given what is known."""
        self._keep_to(limit)
        if self._keep(self.free.choices, limit, -inf).fits:
            return self._near_the_top(limit, best)
        over = 1.0 if best.fits else best.keeping.peak_bytes / limit
        price = first = min(_FIRST * over**_POWER, PRICES_IF_KEPT[-1])
        lean_first = over > _LEAN_FIRST
        if lean_first and self.is_far(best, limit):
            best = self._leanest(limit, best)
            is_over = self.is_far(best, limit) or self.clock.left_s <= 0
            if is_over or self._is_too_slow(best):
                return best
        for number, is_lean in enumerate((lean_first, not lean_first)):
            share = Clock.of(self.clock.left_s * (1.0 if number else _SHARE))
            among = self._lean(limit, best) if is_lean else None
            best, of_best = self._raised(limit, best, share, price, among)
            price = of_best or price
            is_done = best.is_optimal or (best.fits and self.wanted.is_rough)
            if is_done or self._is_too_slow(best):
                return best
            if self.clock.left_s <= 0:
                break
        best = self._by_moments(limit, best, first)
        if best.fits:
            return best
        is_late = self.clock.left_s <= 0  # then there is one price, that holds little
        prices = PRICES_IF_KEPT[::-1] if is_late else PRICES_IF_KEPT
        lean = self._lean(limit, best)
        for price_if_kept in prices:
            best = best.better(self._at_if_kept(price_if_kept, limit, lean))
            if best.fits or self.clock.left_s <= 0:
                break
        return best

    def _leanest(self, limit: int, best: Limited) -> Limited:
        """Search what is lean, at a price at which it holds about as little as any.

        As long as memory turns out to be short at one moment more, it is searched anew,
        far over the limit if the last time was of use.
        """
        for _ in range(_MOST_LEANEST):
            count, before = len(self.moments), best.keeping.peak_bytes
            lean = self._lean(limit, best)
            best = best.better(
                self._at(PRICES_IF_KEPT[-1], limit, best, self.clock, lean)
            )
            is_stuck = best.keeping.peak_bytes > _OF_USE * before
            if best.fits or len(self.moments) == count:
                break
            if is_stuck and self.is_far(best, limit):
                break
        return best

    def _raised(
        self,
        limit: int,
        best: Limited,
        clock: Clock,
        price: float,
        lean: Narrowed | None = None,
    ) -> tuple[Limited, float]:
        """Raise a price until placements fit; then try others near the best so far.

        With ``lean``, that alone is searched. With the best comes the price that led
        to the fastest that fits, 0 where none does.
        """
        tried: dict[float, float] = {}
        for _ in range(_MOST_RAISES):
            count = len(self.moments)
            found = self._at(price, limit, best, clock, lean)
            best = best.better(found)
            if found.fits:
                tried[price] = found.seconds
                break
            if len(self.moments) == count:  # else once more, with the moment priced
                tried[price] = inf
                price = price * STEP
            is_over = clock.left_s <= 0 or price > PRICES_IF_KEPT[-1]
            if is_over or self._is_too_slow(best):
                return best, 0.0
        else:
            return best, 0.0
        clock = Clock.of(_PRICES_SHARE * clock.left_s)
        for _ in range(_MOST_MIDDLES):
            if clock.left_s <= 0 or best.is_optimal:
                break
            price = nearer_the_least(tried)
            found = self._at(price, limit, best, clock, lean)
            best = best.better(found)
            tried[price] = found.seconds if found.fits else inf
        return best, min(tried, key=tried.__getitem__)

    def _by_moments(self, limit: int, best: Limited, first: float) -> Limited:
        """Give memory a price at one moment alone, the last that was short first.

        What is held too much at another may be made again, and is cheaper so.
        """
        last = self.moments[::-1][:_MOST_ALONE] if len(self.moments) > 1 else []
        for number, moment in enumerate(last):
            share = Clock.of(self.clock.left_s * _SHARE / (len(last) - number))
            tried: dict[float, float] = {}
            price = first
            for _ in range(_PRICES_ALONE):
                if share.left_s <= 0 or best.is_optimal:
                    break
                found = self._at(price, limit, best, share, at=(moment,))
                best = best.better(found)
                tried[price] = found.seconds if found.fits else inf
                price = nearer_the_least(tried) if found.fits else price * STEP
        return best

    def _lean(self, limit: int, best: Limited) -> Narrowed:
        """Return the problem without what takes much of a limit by itself.

        It has what holds little, but not all that is fast. An assignment is left in,
        so that there is one in which equal blocks are alike.
        """
        least, known = self._own_bytes.least, best.choices
        most = least * (max(limit, least) / least) ** (1 - _LEAN)
        firsts = [known[members[0]] for members in self.fold.members]
        if self.fold.unfold(firsts) != known:
            known = self.free.choices
        left_in = self._own_bytes.within(most, known)
        prices = WithinBytes.of(self.posed, most - self.state_bytes, known)
        return Narrowed.to(self.posed, self.fold, left_in, prices)

    def _near_the_top(self, limit: int, best: Limited) -> Limited:
        """Return the best that prices near that of the best bound lead to.

        What is placed as without a limit fits, with enough made again: no price is
        needed for that.
        """
        bounds, price = {0.0: self.free.bound_s}, _FIRST
        clock = Clock.of(_PRICES_SHARE * self.clock.left_s)
        for _ in range(_MOST_TOPS // 2 if self.wanted.is_rough else _MOST_TOPS):
            found = self._at(price, limit, best, self.clock)
            bounds[price] = found.bound_s
            best = best.better(found)
            if clock.left_s <= 0 or best.is_optimal or self._is_too_slow(best):
                break
            price = nearer_the_top(bounds)
        return best

    @cached_property
    def _unit(self) -> float:
        """Seconds per byte, if bytes cost as much as all time."""
        return self.free.seconds / max(self._met.held_by(self.free.choices).most, 1)

    def _left(self, best: Limited, price: float) -> Narrowed:
        """Return the problem without what takes longer than what is known.

        At a price nothing is cheapest that takes more than the free assignment does
        with the price of all that it holds.
        """
        known_s = self.free.seconds * (1 + price) if price < _MOST_NARROWING else inf
        known_s = min(known_s, self.wanted.below_s, best.seconds if best.fits else inf)
        if known_s == inf:
            return self._within
        if self._narrowed is None or not self._narrowed.serves(known_s):
            known = self.free.choices, *([best.choices] if best.fits else [])
            self._narrowed = self._within.below(known_s, known, self.clock)
        return self._narrowed

    @cached_property
    def _own_bytes(self) -> OwnBytes:
        return OwnBytes(self.posed, self.fold, self.optimizer)

    def _keep_to(self, limit: int) -> None:
        """Leave out what needs more than a limit by itself, unless all does."""
        if limit > self._limit:  # what is left out for more, is for less
            self._limit, self._narrowed = limit, None
            self._may_fit = self._own_bytes.within(limit, self.free.choices)
            room = limit - self.state_bytes
            prices = WithinBytes.of(self.posed, room, self.free.choices)
            self._within = Narrowed.to(self.posed, self.fold, self._may_fit, prices)

    @cached_property
    def _at_price(self) -> AtPrice:
        return AtPrice(self.fold.class_of, self.optimizer)

    def _at(
        self,
        price: float,
        limit: int,
        best: Limited,
        clock: Clock,
        lean: Narrowed | None = None,
        at: Sequence[int] = (),
    ) -> Limited:
        """Search with memory at a price, relative to the free assignment's time.

        It has a price at all moments at which it was short unless others are stated.
        What is found among what is ``lean`` alone has no bound.
        """
        among, seconds_per_byte = lean or self._left(best, price), price * self._unit
        time_s = _SHARE * max(clock.left_s, 1.0)
        moments = tuple(at or self.moments)
        solved = self._at_price.solved(among.posed, moments, seconds_per_byte, time_s)
        bound = min(solved.bound_s - seconds_per_byte * limit, among.known_s)
        choices = among.widened(solved.choices)
        found = self._keep(choices, limit, bound)
        if not found.fits and found.keeping.moment not in self.moments:
            self.moments.append(found.keeping.moment)
        if lean is not None:
            return replace(found, bound_s=-inf)
        return replace(found, price=seconds_per_byte, at=moments)

    def _at_if_kept(self, price: float, limit: int, among: Narrowed) -> Limited:
        """Search with memory at a price as if nothing could be made again."""
        whole = among.posed, tuple(self.moments), price * self._unit
        time_s = _SHARE * max(self.clock.left_s, 1.0)
        solved = self._at_price.solved(*whole, time_s, MemoryPrice.kept_problem)
        return self._keep(among.widened(solved.choices), limit, -inf)

    def _keep(self, choices: tuple[int, ...], limit: int, bound_s: float) -> Limited:
        """Choose what to make again of an assignment."""
        keeping = self._met.keeping(choices, limit, self.clock)
        seconds = cost_of(self.posed.problem, choices) + keeping.seconds
        fits = keeping.peak_bytes <= limit
        return Limited(choices, keeping, seconds, fits, bound_s)
