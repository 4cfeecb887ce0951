"""What to keep from forward to backward, and what to make again, under a memory limit.

A *maker* is a call or a boxing of the forward. As an integer program:

    again[m] in {0, 1}      it is made again for the backward
    needed[m] in {0, 1}     backward needs what it makes, itself or to make other things
    needed[m] = 1           where backward uses it
    needed[s] >= again[m]   for every source s of m
    again[m] <= needed[m]
    again[s] + needed[c] - again[c] <= 1   a copy c of what is made again is, too
    over >= 0               what the limit is exceeded by, where nothing keeps to it
    minimize  sum seconds[m] * again[m] + (very much) * over
    for moments t:  sum of what is held at t <= limit + over

Between its last use in the forward and the first need of it in the backward a holding
is there if it is needed and not made again. Rows for moments are added as they turn
out to be needed (``_MOST_ROUNDS``).

Of many makers, those that are alike in equal blocks are counted together: again[m] and
needed[m] are then numbers from 0 to that of the blocks. Those of the first blocks are
made again, whose backward comes last.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import highspy
import numpy as np
import numpy.typing as npt

from partita.compiler.search.highs import make_highs, run_highs
from partita.compiler.search.holdings import Holding, Holdings
from partita.compiler.search.parts import Clock

Floats = npt.NDArray[np.float64]

_GAP = 1e-4
_MOST_ROUNDS = 60
_MOST_ALONE = 400  # makers; of more, those of equal blocks are counted together
_MOST_REFUSED = 10  # choices ruled out one by one; then a row's limit is lowered
_MOST_HALVINGS = 6
_CLOSE = 0.98  # of what is known to be reached, what else is not tried for
_VERY_MUCH = 1e3  # times all seconds, for exceeding the limit by all that is held


@dataclass(frozen=True)
class Keeping:
    """What is made again, what that takes, and what is held during every call.

    That is more than was asked for where nothing fits: then it is the least found.
    """

    again: frozenset[str]
    seconds: float
    live: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """The most that is held."""
        return max(self.live)

    @property
    def moment(self) -> int:
        """The first call at which most is held."""
        return self.live.index(self.peak_bytes)


class _Needs(NamedTuple):
    """The first call of the backward that needs a maker, the last that a holding."""

    first: dict[int, int]
    last: dict[int, int]


class _Choice(NamedTuple):
    """Which makers work again; ``is_over`` where no choice holds so little."""

    again: dict[int, bool]
    is_over: bool = False


def choose_keeping(held: Holdings, limit: int, clock: Clock) -> Keeping:
    """Return the cheapest way found in time to hold no more than ``limit`` bytes."""
    return _Chooser(held, limit, clock).choose()


def least_keeping(held: Holdings, known: Keeping, limit: int, clock: Clock) -> Keeping:
    """Return what holds less than is known, where nothing was found for a limit.

    Far below what can be reached a chooser does not know where to begin. So limits
    between are tried, by halving.
    """
    best, low = known, float(limit)
    for _ in range(_MOST_HALVINGS):
        middle = (low + best.peak_bytes) / 2
        if clock.left_s <= 0 or middle > _CLOSE * best.peak_bytes:
            break
        found = choose_keeping(held, int(middle), clock)
        if found.peak_bytes > middle:
            low = middle
        best = min(best, found, key=lambda keeping: keeping.peak_bytes)
    return best


def keep(held: Holdings, again: Collection[str]) -> Keeping:
    """Return what making these things again comes to, as far as the backward needs it.

    Copies of what is made again are made again with it.

    Args:
        held: what an assignment holds.
        again: keys of calls and boxings of the forward.
    """
    return _Chooser(held, 0, Clock.of(0)).keep(again)


class _Chooser:
    def __init__(self, held: Holdings, limit: int, clock: Clock) -> None:
        self.held = held
        self.limit = limit
        self.clock = clock

    def choose(self) -> Keeping:
        choice = _Choice(dict.fromkeys(self.makers, False))
        live = self._live(choice)
        best = self._keeping(choice, live)
        limits: dict[int, float] = {}
        refused: list[_Choice] = []
        for _ in range(_MOST_ROUNDS):
            if best.peak_bytes <= self.limit or self.clock.left_s <= 0:
                break
            moment, surplus = int(live.argmax()), float(live.max()) - self.limit
            # A moment that comes again held more than its row knows of.
            if moment not in limits:
                limits[moment] = float(self.limit)
            elif choice.is_over:
                break
            elif self._is_one_by_one and len(refused) < _MOST_REFUSED:
                refused.append(choice)
            else:
                limits[moment] -= surplus
            solved = self._solve(limits, refused)
            if solved is None:
                break
            choice = solved
            live = self._live(choice)
            found = self._keeping(choice, live)
            best = min(best, found, key=lambda keeping: keeping.peak_bytes)
        return best

    def keep(self, again: Collection[str]) -> Keeping:
        chosen = {m: own[0].keys[0] in again for m, own in self.makers.items()}
        self._add_copies(chosen)
        needed = self._needs(lambda _, user: chosen[user]).first
        choice = _Choice({m: chosen[m] and m in needed for m in chosen})
        return self._keeping(choice, self._live(choice))

    def _add_copies(self, again: dict[int, bool]) -> None:
        """Have copies of what is made again be made again, too."""
        for maker, own in self.makers.items():
            if own[0].is_copy and any(again[s] for s in self._sources(maker)):
                again[maker] = True

    @cached_property
    def makers(self) -> dict[int, list[Holding]]:
        """What could be made again, by maker: of the forward, and not leaving."""
        found: dict[int, list[Holding]] = {}
        for holding in self.held.holdings:
            found.setdefault(holding.maker, []).append(holding)
        return {
            maker: own
            for maker, own in found.items()
            if own[0].first < self.held.num_forward
            and all(one.seconds < inf for one in own)
        }

    @cached_property
    def users(self) -> dict[int, list[int]]:
        """Per holding, the makers that need it to make their own again."""
        found: dict[int, list[int]] = {}
        for maker, own in self.makers.items():
            for source in dict.fromkeys(own[0].sources):
                found.setdefault(source, []).append(maker)
        return found

    @cached_property
    def numbers(self) -> dict[int, list[int]]:
        """The holdings of each maker, by their numbers."""
        found: dict[int, list[int]] = {maker: [] for maker in self.makers}
        for number, one in enumerate(self.held.holdings):
            if one.maker in found:
                found[one.maker].append(number)
        return found

    def _sources(self, maker: int) -> list[int]:
        sources = self.makers[maker][0].sources
        at = (self.held.holdings[source].maker for source in sources)
        return [source for source in dict.fromkeys(at) if source in self.makers]

    def _is_used(self, maker: int) -> bool:
        return any(one.backward for one in self.makers[maker])

    def _needs(self, counts: Callable[[int, int], bool]) -> _Needs:
        """Return when the backward needs what can be made again.

        That is where it uses it, or where a user of it is first needed, for the pairs
        (maker, user) that count.
        """
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for maker, numbers in reversed(self.numbers.items()):
            for number in numbers:
                uses = list(self.held.holdings[number].backward)
                for user in self.users.get(number, ()):
                    if user in first and counts(maker, user):
                        uses.append(first[user])
                if uses:
                    last[number] = max(uses)
                    first[maker] = min(first.get(maker, uses[0]), *uses)
        return _Needs(first, last)

    def _keeping(self, choice: _Choice, live: Floats) -> Keeping:
        chosen = [self.makers[maker] for maker, again in choice.again.items() if again]
        keys = frozenset(key for own in chosen for one in own for key in one.keys)
        seconds = sum(own[0].seconds for own in chosen)
        return Keeping(keys, seconds, tuple(live.astype(np.int64).tolist()))

    def _live(self, choice: _Choice, needs: _Needs | None = None) -> Floats:
        """Return the bytes that are held during every call.

        What is needed when follows from the choice, unless it is given.
        """
        again = choice.again
        change = np.zeros(self.held.num_calls + 2)
        if needs is None:
            needs = self._needs(lambda _, user: again[user])
        for number, one in enumerate(self.held.holdings):
            spans = [(one.first, max([one.forward, *one.backward]))]
            if one.maker in self.makers:
                spans = [(one.first, one.forward)]
                last = needs.last.get(number)
                if last is not None and again[one.maker]:
                    start = max(needs.first[one.maker], one.forward + 1)
                    spans.append((start, max(last, start - 1)))
                elif last is not None:
                    spans = [(one.first, max(one.forward, last))]
            for first, end in spans:
                change[max(first, 0)] += one.num_bytes
                change[end + 1] -= one.num_bytes
        change[self.held.num_calls] += self.held.update_bytes
        return self.held.state_bytes + np.cumsum(change[:-1])

    @cached_property
    def _usual(self) -> _Needs:
        """First needs, if what the backward uses itself is needed for that first."""
        return self._needs(lambda maker, _: not self._is_used(maker))

    @cached_property
    def _used_last(self) -> dict[int, int]:
        """The last need of each holding of a maker that the backward uses itself."""
        return {
            number: self._usual.last[number]
            for maker, numbers in self.numbers.items()
            if self._is_used(maker)
            for number in numbers
            if number in self._usual.last
        }

    def _kept_at(self, moment: int) -> dict[int, int]:
        """Return the bytes that each maker holds at a moment because it is kept."""
        found: dict[int, int] = {}
        for maker, first in self._usual.first.items():
            for one in self.makers[maker]:
                if one.forward < moment < first:
                    found[maker] = found.get(maker, 0) + one.num_bytes
        return {maker: num_bytes for maker, num_bytes in found.items() if num_bytes}

    @cached_property
    def _groups(self) -> list[list[int]]:
        """The makers; where there are many, those of equal blocks together."""
        if len(self.makers) <= _MOST_ALONE:
            return [[maker] for maker in self.makers]
        found: dict[Hashable, list[int]] = {}
        for maker, own in self.makers.items():
            sizes = tuple(one.num_bytes for one in own)
            kind = own[0].alike, sizes, own[0].seconds, self._is_used(maker)
            found.setdefault(maker if kind[0] is None else kind, []).append(maker)
        return list(found.values())

    @property
    def _is_one_by_one(self) -> bool:
        return len(self._groups) == len(self.makers)

    def _solve(
        self, limits: dict[int, float], refused: list[_Choice]
    ) -> _Choice | None:
        """Return the cheapest choice that holds so much at most at these moments.

        ``None`` where every choice is refused, or none was found in time.
        """
        groups = self._groups
        count = len(groups)
        number = {maker: at for at, group in enumerate(groups) for maker in group}
        highs = make_highs(max(self.clock.left_s, 0.1), 1, _GAP)
        seconds = [self.makers[group[0]][0].seconds for group in groups]
        sizes = [float(len(group)) for group in groups]
        unit = max(sum(map(operator.mul, seconds, sizes)), 1e-30)
        used = [self._is_used(group[0]) * len(group) for group in groups]
        over = 2 * count
        least, most = [0.0] * count + used + [0.0], [*sizes, *sizes, inf]
        highs.addVars(over + 1, least, most)
        costs = [s / unit + 1e-9 for s in seconds] + [0.0] * count + [_VERY_MUCH]
        for column, cost in enumerate(costs):
            highs.changeColCost(column, cost)
        for column in range(over):
            highs.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        for own, group in enumerate(groups):
            highs.addRow(-inf, 0.0, 2, [own, count + own], [1.0, -1.0])
            links = Counter(
                (number[source], source)
                for maker in group
                for source in self._sources(maker)
            )
            for source in dict.fromkeys(at for at, _ in links):
                uses = [times for (at, _), times in links.items() if at == source]
                # those that are made again first lack such a source last
                without = len(group) - sum(uses)
                columns, each = [own, count + source], sum(uses) / len(uses)
                highs.addRow(-inf, without, 2, columns, [1.0, -each])
                if self.makers[group[0]][0].is_copy and sizes[own] == sizes[source]:
                    columns = [source, count + own, own]
                    highs.addRow(-inf, sizes[own], 3, columns, [1.0, 1.0, -1.0])
        everything = _Choice(dict.fromkeys(self.makers, True))
        first = {m: at for m, at in self._usual.first.items() if self._is_used(m)}
        base = self._live(everything, _Needs(first, self._used_last))
        scale = float(max(base.max(), self.limit, 1))
        for moment, limit in limits.items():
            kept = [0.0] * count
            for maker, num_bytes in self._kept_at(moment).items():
                kept[number[maker]] += num_bytes / sizes[number[maker]] / scale
            there = [at for at in range(count) if kept[at]]
            columns = [*there, *(count + at for at in there), over]
            values = [-kept[at] for at in there] + [kept[at] for at in there] + [-1.0]
            top = (limit - base[moment]) / scale
            highs.addRow(-inf, top, len(columns), columns, values)
        for choice in refused:
            signs = [-1.0 if again else 1.0 for again in choice.again.values()]
            fewest = 1.0 - sum(choice.again.values())
            columns = [number[maker] for maker in choice.again]
            highs.addRow(fewest, inf, count, columns, signs)
        solution = run_highs(highs).values
        if solution is None:
            return None
        again = {
            maker: place < round(solution[own])
            for own, group in enumerate(groups)
            for place, maker in enumerate(group)
        }
        again = {maker: again[maker] for maker in self.makers}
        if not self._is_one_by_one:
            self._add_copies(again)
        return _Choice(again, bool(solution[over] > 1e-6))
