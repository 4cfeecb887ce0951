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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import highspy
import numpy as np
import numpy.typing as npt

from partita.compiler.search.highs import make_highs
from partita.compiler.search.holdings import Holding, Holdings
from partita.compiler.search.parts import Clock

Floats = npt.NDArray[np.float64]

_GAP = 1e-4
_MOST_ROUNDS = 60
_MOST_REFUSED = 20  # choices ruled out one by one; then a row's limit is lowered
_VERY_MUCH = 1e3  # times all seconds, for exceeding the limit by all that is held


@dataclass(frozen=True)
class Keeping:
    """What is made again, what that takes, and the most that is held, at which call.

    ``peak_bytes`` is more than was asked for where nothing fits: then it is the least
    that was found.
    """

    again: frozenset[str]
    seconds: float
    peak_bytes: int
    moment: int


class _Need(NamedTuple):
    """The first and the last call of the backward that need a maker."""

    first: int
    last: int


class _Choice(NamedTuple):
    """Which makers work again, and of which the backward needs what they make.

    ``is_over`` where no choice holds so little.
    """

    again: dict[int, bool]
    needed: dict[int, bool]
    is_over: bool = False


def choose_keeping(held: Holdings, limit: int, clock: Clock) -> Keeping:
    """Return the cheapest way found in time to hold no more than ``limit`` bytes."""
    return _Chooser(held, limit, clock).choose()


class _Chooser:
    def __init__(self, held: Holdings, limit: int, clock: Clock) -> None:
        self.held = held
        self.limit = limit
        self.clock = clock

    def choose(self) -> Keeping:
        nothing = dict.fromkeys(self.makers, False)
        choice = _Choice(nothing, {m: self._is_used(m) for m in self.makers})
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
            elif len(refused) < _MOST_REFUSED:
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
        """The makers that need what a maker makes to make their own again."""
        found: dict[int, list[int]] = {maker: [] for maker in self.makers}
        for maker in self.makers:
            for source in self._sources(maker):
                found[source].append(maker)
        return found

    def _sources(self, maker: int) -> list[int]:
        sources = self.makers[maker][0].sources
        at = (self.held.holdings[source].maker for source in sources)
        return [source for source in dict.fromkeys(at) if source in self.makers]

    def _is_used(self, maker: int) -> bool:
        return any(one.backward for one in self.makers[maker])

    def _needs(self, counts: Callable[[int, int], bool]) -> dict[int, _Need]:
        """Return when the backward needs each maker.

        That is where it uses it, or where a user of it is first needed, for the pairs
        (maker, user) that count.
        """
        found: dict[int, _Need] = {}
        for maker, own in reversed(self.makers.items()):
            uses = [use for one in own for use in one.backward]
            users = [user for user in self.users[maker] if counts(maker, user)]
            uses += [found[user].first for user in users if user in found]
            if uses:
                found[maker] = _Need(min(uses), max(uses))
        return found

    def _keeping(self, choice: _Choice, live: Floats) -> Keeping:
        chosen = [self.makers[maker] for maker, again in choice.again.items() if again]
        keys = frozenset(key for own in chosen for one in own for key in one.keys)
        seconds = sum(own[0].seconds for own in chosen)
        return Keeping(keys, seconds, int(live.max()), int(live.argmax()))

    def _live(self, choice: _Choice, needs: dict[int, _Need] | None = None) -> Floats:
        """Return the bytes that are held during every call.

        What is needed when follows from the choice, unless it is given.
        """
        again, needed = choice.again, choice.needed
        change = np.zeros(self.held.num_calls + 2)
        if needs is None:
            needs = self._needs(lambda _, user: again[user] and needed[user])
        for one in self.held.holdings:
            spans = [(one.first, max([one.forward, *one.backward]))]
            if one.maker in self.makers:
                need = needs.get(one.maker)
                spans = [(one.first, one.forward)]
                if needed[one.maker] and need is not None:
                    if again[one.maker]:
                        spans.append((max(need.first, one.forward + 1), need.last))
                    else:
                        spans = [(one.first, max(one.forward, need.last))]
            for first, end in spans:
                change[max(first, 0)] += one.num_bytes
                change[end + 1] -= one.num_bytes
        change[self.held.num_calls] += self.held.update_bytes
        return self.held.state_bytes + np.cumsum(change[:-1])

    @cached_property
    def _usual(self) -> dict[int, _Need]:
        """First needs, if what the backward uses itself is needed for that first."""
        return self._needs(lambda maker, _: not self._is_used(maker))

    def _kept_at(self, moment: int) -> dict[int, int]:
        """Return the bytes that each maker holds at a moment because it is kept."""
        found: dict[int, int] = {}
        for maker, need in self._usual.items():
            for one in self.makers[maker]:
                if one.forward < moment < need.first:
                    found[maker] = found.get(maker, 0) + one.num_bytes
        return {maker: num_bytes for maker, num_bytes in found.items() if num_bytes}

    def _solve(
        self, limits: dict[int, float], refused: list[_Choice]
    ) -> _Choice | None:
        """Return the cheapest choice that holds so much at most at these moments.

        ``None`` where every choice is refused, or none was found in time.
        """
        number = {maker: index for index, maker in enumerate(self.makers)}
        count = len(number)
        highs = make_highs(max(self.clock.left_s, 0.1), 1, _GAP)
        seconds = [self.makers[maker][0].seconds for maker in number]
        unit = max(sum(seconds), 1e-30)
        used = [float(self._is_used(maker)) for maker in number]
        over = 2 * count
        highs.addVars(over + 1, [0.0] * count + used + [0.0], [1.0] * over + [inf])
        costs = [s / unit + 1e-9 for s in seconds] + [0.0] * count + [_VERY_MUCH]
        for column, cost in enumerate(costs):
            highs.changeColCost(column, cost)
        for column in range(over):
            highs.changeColIntegrality(column, highspy.HighsVarType.kInteger)
        for maker, own in number.items():
            needed = [own, *(number[source] for source in self._sources(maker))]
            for source in needed:
                highs.addRow(-inf, 0.0, 2, [own, count + source], [1.0, -1.0])
            for source in self._sources(maker) if self.makers[maker][0].is_copy else ():
                columns = [number[source], count + own, own]
                highs.addRow(-inf, 1.0, 3, columns, [1.0, 1.0, -1.0])
        everything = _Choice(
            dict.fromkeys(number, True),
            {maker: self._is_used(maker) for maker in number},
        )
        base = self._live(everything, self._usual)
        scale = float(max(base.max(), self.limit, 1))
        for moment, limit in limits.items():
            kept = self._kept_at(moment)
            columns = [number[m] for m in kept] + [count + number[m] for m in kept]
            values = [-b / scale for b in kept.values()]
            values += [b / scale for b in kept.values()]
            top = (limit - base[moment]) / scale
            highs.addRow(-inf, top, len(columns) + 1, [*columns, over], [*values, -1.0])
        for choice in refused:
            signs = [-1.0 if again else 1.0 for again in choice.again.values()]
            least = 1.0 - sum(choice.again.values())
            highs.addRow(least, inf, count, list(number.values()), signs)
        ran = highs.run()
        assert ran != highspy.HighsStatus.kError, "HiGHS refused the program"
        status = highs.getInfo().primal_solution_status
        if status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        solution = np.array(highs.getSolution().col_value)
        return _Choice(
            {maker: bool(solution[i] > 0.5) for maker, i in number.items()},
            {maker: bool(solution[count + i] > 0.5) for maker, i in number.items()},
            bool(solution[over] > 1e-6),
        )
