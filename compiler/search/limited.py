"""The fastest plan that a memory limit allows: placements, and what is made again.

For a few prices of memory, the cheapest placements are searched (memory_price.py) among
choices that can belong to something faster than what is known (narrowed.py); for each
of these, what to make again so that they keep to the limit (keeping.py). The price is
raised until placements fit, then prices between the last that did not and the first
that did are tried; where placements fit without a price, prices near that of the best
bound. Each price gives a lower bound, too. Then choices that cannot belong to anything
faster go (worthwhile.py), and an integer program decides placements and what is made
again together (joint.py).

All of that has equal blocks placed alike. Where memory is short, the fastest is often
that some of them take less memory and the others less time: in the end each may take
any of the choices met on the way, by an integer program over all blocks; and what was
found is made better window by window (windows.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, sqrt

from partita.compiler.search.at_price import AtPrice
from partita.compiler.search.build import build_model
from partita.compiler.search.fold import Fold
from partita.compiler.search.joint import Joint, JointSearch
from partita.compiler.search.keeping import least_keeping
from partita.compiler.search.memory_price import MemoryPrice
from partita.compiler.search.met import Met
from partita.compiler.search.mixtures import Mixtures
from partita.compiler.search.model import Bools
from partita.compiler.search.narrowed import Narrowed
from partita.compiler.search.parts import THREADS, Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import SearchNode, cost_of
from partita.compiler.search.solver import HIGHS, Solution
from partita.compiler.search.state import States
from partita.compiler.search.wanted import ANY, Wanted
from partita.compiler.search.windows import WindowSearch
from partita.compiler.search.within_limit import STEP, Limited, nearer_the_top
from partita.compiler.search.worthwhile import (
    everything,
    num_pairs,
    with_known,
    worthwhile,
)

_FIRST = 0.1  # of the seconds and bytes that the plan without a limit takes
_MOST_RAISES = 5
_PRICES_IF_KEPT = (0.8, 6.4, 51.2, 409.6)  # tried where all others hold too much
_MOST_NARROWING = 1.0  # at higher prices hardly a choice is left out
_MOST_MIDDLES = 3  # prices between one that is too low and one that is not
_MOST_TOPS = 4  # prices near that of the best bound, where none is needed to fit
_LEAST_S = 2.0  # to know what an assignment holds at the least, where that is asked
_FIRST_SHARE = 0.1  # of the time that is left, at the most
_LEAST_SHARE = 0.3  # of the time that is left, for that of all that were met
_SHARE = 0.5  # of the time that is left, for one search of placements
_PRICES_SHARE = 0.5  # of the time that is left, for prices between two others
_JOINT_SHARE = 0.25  # of the time that is left, for the integer program
_LAST_SHARE = 0.5  # of the time that is left, for the same once more
_MUCH = 2.0  # times what is free; of bounds above it, it is asked whether all is less
_NEAR = 0.8  # of what is known, from where a bound may be brought to it in time
_MOST_ENTRIES = 300_000  # pairs of choices that an integer program is written for
_MOST_APART = 20_000  # of them where each block is by itself
# Writing down a node by itself, at four moments, takes 0.3 to 0.8 ms (stacks of 24 to
# 384 layers, 2-core AMD EPYC VM) and is ended by no clock: of more it takes too long.
_MOST_NODES_APART = 10_000
_MIXTURES_SHARE = 0.2  # of the time that is left
_WINDOWS_SHARE = 0.5  # of the time that is left, for windows from one start
_NEARLY = 1.25  # of the limit, what windows may begin with
_LITTLE = 1.002  # times what is known: others, where the plan of that is too large
_MOST_OTHERS = 3
_MOST_NODES = 1000  # of a problem that is improved by windows


@dataclass
class LimitedSearch:
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
    _found: dict[tuple[int, ...], None] = field(
        default_factory=dict[tuple[int, ...], None]
    )
    _narrowed: Narrowed | None = None
    _is_large: bool = False  # too much for an integer program

    @cached_property
    def fold(self) -> Fold:
        """The problem's repeated blocks."""
        return self.posed.fold

    @property
    def _nodes(self) -> tuple[SearchNode, ...]:
        return self.posed.problem.nodes

    @cached_property
    def _met(self) -> Met:
        return Met(self.posed, self.optimizer, self.fold.class_of, self.num_live)

    @cached_property
    def state_bytes(self) -> int:
        """The least that what stays and what is fed takes of a rank: a bound."""
        states, nodes = States(self.posed, self.optimizer), self.posed.problem.nodes
        return sum(
            min(states.of(i, choice).num_bytes for choice in nodes[i].choices)
            for i in states.entering | states.fed
        )

    def run(self, limit: int) -> Limited:
        """Return the fastest assignment found that holds at most ``limit`` bytes."""
        best = self._keep(self.free.choices, limit, self.free.bound_s)
        if best.is_optimal or self._is_too_slow(best):
            return best
        is_asked = self.wanted == ANY
        if is_asked and not (best.fits or self.moments):
            self.moments.append(best.keeping.moment)
            time_s = min(_LEAST_S, _FIRST_SHARE * self.clock.left_s)
            least = self._with_least(best, limit, time_s)
            if least.keeping.moment not in self.moments:
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
        if is_asked and not found.fits:
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
        for price in _PRICES_IF_KEPT[::-1]:
            best = best.better(self._at(price, limit, best, clock))
            if best.fits or clock.left_s <= 0:
                break
            best = best.better(self._at_if_kept(price, limit, best))
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

    def _is_too_slow(self, best: Limited) -> bool:
        """Whether nothing that fits takes less than is wanted, or nothing fits."""
        least_s = best.bound_s
        is_dear = least_s > self.free.seconds * _MUCH and least_s > self._most_s
        return is_dear or least_s >= self.wanted.below_s

    @cached_property
    def _most_s(self) -> float:
        """No assignment takes more, with all of it made again."""
        return 2 * build_model(self.fold).most_cost()

    def _search(self, limit: int, best: Limited) -> Limited:
        if not self.moments:
            self.moments.append(best.keeping.moment)
        best = self._by_prices(limit, best)
        if self._is_too_slow(best):
            return best
        if self.wanted.is_rough or limit < self.state_bytes:
            return best
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

    def _by_prices(self, limit: int, best: Limited) -> Limited:
        """Return the best that prices of memory lead to."""
        if self._keep(self.free.choices, limit, -inf).fits:
            return self._near_the_top(limit, best)
        low, high, price = 0.0, 0.0, _FIRST
        for _ in range(_MOST_RAISES):
            count = len(self.moments)
            found = self._at(price, limit, best, self.clock)
            best = best.better(found)
            if found.fits:
                high = price
                break
            if len(self.moments) == count:  # else once more, with the moment priced
                low, price = price, price * STEP
            if self.clock.left_s <= 0 or self._is_too_slow(best):
                break
        if self._is_too_slow(best):
            return best
        for price_if_kept in () if high else _PRICES_IF_KEPT:
            found = self._at_if_kept(price_if_kept, limit, best)
            best = best.better(found)
            if best.fits or self.clock.left_s <= 0:
                break
        clock = Clock.of(_PRICES_SHARE * self.clock.left_s)
        for _ in range(_MOST_MIDDLES if high else 0):
            if clock.left_s <= 0 or best.is_optimal:
                break
            price = sqrt(max(low, high / STEP**2) * high)
            found = self._at(price, limit, best, clock)
            best = best.better(found)
            low, high = (low, price) if found.fits else (price, high)
        return best

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

    def _jointly(self, limit: int, best: Limited, share: float) -> Limited:
        """Search placements and what is made again together, by an integer program."""
        bound, allowed = best.bound_s, everything(self.fold)
        known: Joint | None = None
        if best.fits:
            known = Joint(best.choices, best.keeping, best.seconds)
        below_s = min(self.wanted.below_s, best.seconds if best.fits else inf)
        if below_s < inf:
            fold = self._at_price.fold(self.posed, best.price)
            paid_s = best.price * limit
            worth, least = worthwhile(fold, below_s, paid_s, self.clock)
            bound = max(bound, least)
            allowed = with_known(worth, self.fold, best.choices)
        if bound >= below_s:
            return replace(best, bound_s=min(bound, below_s))
        self._is_large = num_pairs(self.fold, allowed) > _MOST_ENTRIES
        if self.clock.left_s <= 0 or self._is_large:
            return replace(best, bound_s=bound)
        search = self._program(self.fold, limit, allowed, self.wanted.below_s)
        clock = Clock.of(share * self.clock.left_s)
        found = search.run(self.moments, known, clock)
        bound = max(bound, min(found.bound_s, self.wanted.below_s))
        if found.found is None:
            return replace(best, bound_s=bound, solver=HIGHS)
        bound = min(bound, found.found.seconds)
        return Limited(*found.found, True, bound, HIGHS, best.price)

    def _program(
        self, fold: Fold, limit: int, allowed: Sequence[Bools], below_s: float = inf
    ) -> JointSearch:
        whole = self.posed, fold, self.optimizer, limit, allowed, THREADS
        return JointSearch(*whole, below_s=below_s, num_live=self.num_live)

    def _apart(self, limit: int, best: Limited, bound_s: float) -> Limited:
        """Let equal blocks differ, in choices that were met before."""
        if not best.fits or (best.is_optimal and not self.fold.has_classes):
            return best
        if len(self._nodes) > _MOST_NODES_APART:
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
        return Limited(*found, True, bound, HIGHS, best.price)

    def _by_mixtures(self, limit: int, best: Limited) -> Limited:
        """Let a part of the model choose as something faster does that holds more."""
        is_done = best.is_optimal and not self.fold.has_classes
        if not best.fits or is_done or len(self._nodes) > _MOST_NODES_APART:
            return best
        clock = Clock.of(_MIXTURES_SHARE * self.clock.left_s)
        counted = partial(self._keep, limit=limit, bound_s=-inf)
        for fast in map(counted, self._met.leanest(limit)):
            best = self._mixtures.best(fast, best, counted, clock)
        return best

    @cached_property
    def _mixtures(self) -> Mixtures:
        return Mixtures(self.posed)

    def _by_windows(
        self, limit: int, best: Limited, starts: Sequence[Limited]
    ) -> Limited:
        """Improve what fits, or nearly, window by window; the first gain is enough."""
        if len(self._nodes) > _MOST_NODES:
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
                return Limited(*found, True, bound, HIGHS, best.price)
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
            return self._whole
        if self._narrowed is None or not self._narrowed.serves(known_s):
            known = self.free.choices, *([best.choices] if best.fits else [])
            narrowed = Narrowed.of(self.posed, self.fold, known_s, known, self.clock)
            self._narrowed = narrowed
        return self._narrowed

    @cached_property
    def _whole(self) -> Narrowed:
        return Narrowed.whole(self.posed, self.fold)

    @cached_property
    def _at_price(self) -> AtPrice:
        return AtPrice(self.fold.class_of, self.optimizer, self.moments)

    def _at(self, price: float, limit: int, best: Limited, clock: Clock) -> Limited:
        """Search with memory at a price, relative to the free assignment's time."""
        among, seconds_per_byte = self._left(best, price), price * self._unit
        time_s = _SHARE * max(clock.left_s, 1.0)
        solved = self._at_price.solved(among.posed, seconds_per_byte, time_s)
        bound = min(solved.bound_s - seconds_per_byte * limit, among.known_s)
        choices = among.widened(solved.choices)
        found = self._keep(choices, limit, bound, seconds_per_byte)
        if not found.fits and found.keeping.moment not in self.moments:
            self.moments.append(found.keeping.moment)
        return found

    def _at_if_kept(self, price: float, limit: int, best: Limited) -> Limited:
        """Search with memory at a price as if nothing could be made again."""
        among, time_s = self._left(best, price), _SHARE * max(self.clock.left_s, 1.0)
        kept = MemoryPrice.kept_problem
        solved = self._at_price.solved(among.posed, price * self._unit, time_s, kept)
        return self._keep(among.widened(solved.choices), limit, -inf)

    def _keep(
        self, choices: tuple[int, ...], limit: int, bound_s: float, price: float = 0.0
    ) -> Limited:
        """Choose what to make again of an assignment."""
        keeping = self._met.keeping(choices, limit, self.clock)
        seconds = cost_of(self.posed.problem, choices) + keeping.seconds
        fits = keeping.peak_bytes <= limit
        return Limited(choices, keeping, seconds, fits, bound_s, price=price)
