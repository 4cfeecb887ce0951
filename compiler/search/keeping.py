"""What to keep from forward to backward, and what to make again, under a memory limit.

A *maker* is a call or a boxing of the forward. As an integer program:

    again[m] in {0, 1}      it is made again for the backward
    needed[m] in {0, 1}     backward needs what it makes, itself or to make other things
    needed[m] = 1           where backward uses it
    needed[s] >= again[m]   for every source s of m
    again[m] <= needed[m]
    again[s] + needed[c] - again[c] <= 1   a copy c of what is made again is, too
    over >= 0               what the limit is exceeded by; 0 unless nothing keeps to it
    minimize  sum seconds[m] * again[m] + (very much) * over
    for moments t:  sum of what is held at t <= limit + over

Between its last use in the forward and the first need of it in the backward a holding
is there if it is needed and not made again. Rows for moments are added as they turn
out to be needed (``_MOST_ROUNDS``). They leave out what is made again for others alone:
no choice holds less. Of one that holds more the program learns by a row in which all is
needed when that choice needs it.

Of many makers, those that are alike in equal blocks are counted together: again[m] and
needed[m] are then numbers from 0 to that of the blocks. Those of the first blocks are
made again, whose backward comes last.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import highspy
import numpy as np

from partita.compiler.search.highs import make_highs, run_highs
from partita.compiler.search.holdings import Holdings
from partita.compiler.search.lent import find_lent
from partita.compiler.search.makers import Live, Makers, Needs
from partita.compiler.search.parts import Clock

_GAP = 1e-4
_GAP_TOGETHER = 1e-3  # of makers that are counted together, five times as fast
_MOST_ROUNDS = 60
_MOST_REFUSED = 3  # choices ruled out one by one; then a row is corrected
_MOST_HALVINGS = 6
_CLOSE = 0.98  # of what is known to be reached, what else is not tried for
_NOTHING = (0.0, 0.0)
_VERY_MUCH = 1e3  # times all seconds, for exceeding the limit by all that is held


@dataclass(frozen=True)
class Keeping:
    """What is made again, what that takes, and what is held at each of its moments.

    That is more than was asked for where nothing fits: then it is the least found.
    """

    again: frozenset[str]
    seconds: float
    moments: tuple[int, ...]
    live: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """The most that is held."""
        return max(self.live)

    @property
    def moment(self) -> int:
        """The first at which most is held."""
        return self.moments[self.live.index(self.peak_bytes)]


class _Choice(NamedTuple):
    """Which makers work again; ``is_over`` where no choice holds so little."""

    again: dict[int, bool]
    is_over: bool = False


class _Row(NamedTuple):
    """How much may be held at a moment, and when that is taken to be needed.

    Without ``needs`` what is made again for others alone is left out, which no choice
    holds less than.
    """

    moment: int
    limit: float
    needs: Needs | None = None


def choose_keeping(held: Holdings, limit: int, clock: Clock) -> Keeping:
    """Return the cheapest way found in time to hold no more than ``limit`` bytes."""
    return _Chooser(Makers(held), limit, clock).choose()


def least_keeping(held: Holdings, known: Keeping, limit: int, clock: Clock) -> Keeping:
    """Return what holds less than is known, where nothing was found for a limit.

    Far below what can be reached a chooser does not know where to begin. So it begins
    with what is held whatever is made again, the least that can be asked for. Limits
    between are tried then, by halving.
    """
    makers = Makers(held)
    least = float(makers.apart.held.max())
    best, low = known, max(float(limit), least)
    if limit < least < best.peak_bytes:
        found = _Chooser(makers, int(least), clock).choose()
        best = min(best, found, key=lambda keeping: keeping.peak_bytes)
    for _ in range(_MOST_HALVINGS):
        middle = (low + best.peak_bytes) / 2
        if clock.left_s <= 0 or middle > _CLOSE * best.peak_bytes:
            break
        found = _Chooser(makers, int(middle), clock).choose()
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
    return _Chooser(Makers(held), 0, Clock.of(0)).keep(again)


class _Chooser:
    def __init__(self, makers: Makers, limit: int, clock: Clock) -> None:
        self.makers = makers
        self.limit = limit
        self.clock = clock

    def choose(self) -> Keeping:
        choice = _Choice(dict.fromkeys(self.makers.every, False))
        live = self.makers.live(choice.again)
        best = self._keeping(choice, live)
        rows: list[_Row] = []
        refused: list[_Choice] = []
        has_gained = False
        for _ in range(_MOST_ROUNDS):
            if best.peak_bytes <= self.limit or self.clock.left_s <= 0:
                break
            num_bytes = live.at(live.moments)
            moment = int(live.moments[num_bytes.argmax()])
            # A moment that comes again held more than its row knows of.
            if all(row.moment != moment for row in rows):
                rows.append(_Row(moment, float(self.limit)))
            elif choice.is_over and not has_gained:
                break
            elif self.makers.is_one_by_one and len(refused) < _MOST_REFUSED:
                refused.append(choice)
            else:
                rows.append(self._corrected(moment, choice, num_bytes.max()))
            solved = self._solve(rows, refused)
            if solved is None:
                break
            choice = solved
            live = self.makers.live(choice.again)
            found = self._keeping(choice, live)
            has_gained = found.peak_bytes < best.peak_bytes
            best = found if has_gained else best
        return best

    def keep(self, again: Collection[str]) -> Keeping:
        chosen = {m: own[0].keys[0] in again for m, own in self.makers.every.items()}
        self._add_copies(chosen)
        needed = self.makers.needs(lambda _, user: chosen[user]).first
        choice = _Choice({m: chosen[m] and m in needed for m in chosen})
        return self._keeping(choice, self.makers.live(choice.again))

    def _add_copies(self, again: dict[int, bool]) -> None:
        """Have copies of what is made again be made again, too."""
        for maker, own in self.makers.every.items():
            if own[0].is_copy and any(again[s] for s in self.makers.sources(maker)):
                again[maker] = True

    def _keeping(self, choice: _Choice, live: Live) -> Keeping:
        chosen = [
            self.makers.every[maker] for maker, again in choice.again.items() if again
        ]
        keys = frozenset(key for own in chosen for one in own for key in one.keys)
        seconds = sum(own[0].seconds for own in chosen)
        held = live.at(live.moments).astype(np.int64)
        return Keeping(keys, seconds, (*live.moments.tolist(),), (*held.tolist(),))

    def _corrected(self, moment: int, choice: _Choice, num_bytes: float) -> _Row:
        """Return the row of a moment by which a choice holds what it does then."""
        needs = self.makers.needs_of(choice.again)
        held = self.makers.held_at(moment, needs)
        counted = self._apart(moment)
        for group in self.makers.groups:
            if_kept, if_again = (
                sum(held.get(m, _NOTHING)[i] for m in group) for i in (0, 1)
            )
            again = sum(choice.again[m] for m in group) / len(group)
            needed = sum(m in needs.first for m in group) / len(group)
            counted += if_kept * (needed - again) + if_again * again
        return _Row(moment, self.limit - (num_bytes - counted), needs)

    def _apart(self, moment: int) -> float:
        return float(self.makers.apart.at(np.array(moment)))

    def _solve(
        self, rows: Sequence[_Row], refused: Sequence[_Choice]
    ) -> _Choice | None:
        """Return the cheapest choice that holds so much at most by these rows.

        ``None`` where every choice is refused, or none was found in time.
        """
        groups = self.makers.groups
        count = len(groups)
        number = {maker: at for at, group in enumerate(groups) for maker in group}
        gap = _GAP if self.makers.is_one_by_one else _GAP_TOGETHER
        highs = make_highs(max(self.clock.left_s, 0.1), 1, gap)
        seconds = [self.makers.every[group[0]][0].seconds for group in groups]
        sizes = [float(len(group)) for group in groups]
        unit = max(sum(map(operator.mul, seconds, sizes)), 1e-30)
        used = [self.makers.is_used(group[0]) * len(group) for group in groups]
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
                for source in self.makers.sources(maker)
            )
            for source in dict.fromkeys(at for at, _ in links):
                uses = [times for (at, _), times in links.items() if at == source]
                # those that are made again first lack such a source last
                without = len(group) - sum(uses)
                columns, each = [own, count + source], sum(uses) / len(uses)
                highs.addRow(-inf, without, 2, columns, [1.0, -each])
                if (
                    self.makers.every[group[0]][0].is_copy
                    and sizes[own] == sizes[source]
                ):
                    columns = [source, count + own, own]
                    highs.addRow(-inf, sizes[own], 3, columns, [1.0, 1.0, -1.0])
        lent = find_lent(self.makers.held, self.makers.users)
        highs.addVars(len(lent), [0.0] * len(lent), [1.0] * len(lent))
        for kept_on, one in enumerate(lent, over + 1):
            for own in {number[user] for user in one.users}:
                highs.addRow(-inf, 0.0, 2, [own, kept_on], [1.0 / sizes[own], -1.0])
        scale = float(max(self.makers.apart.held.max(), self.limit, 1))
        first = self.makers.usual.first
        for row in rows:
            kept, again = [0.0] * count, [0.0] * count
            for maker, (if_kept, if_again) in self.makers.held_at(
                row.moment, row.needs
            ).items():
                at = number[maker]
                kept[at] += if_kept / sizes[at] / scale
                again[at] += if_again / sizes[at] / scale
            there = [at for at in range(count) if kept[at] or again[at]]
            columns = [*there, *(count + at for at in there), over]
            values = [again[at] - kept[at] for at in there]
            values += [*(kept[at] for at in there), -1.0]
            for kept_on, one in enumerate(lent if row.needs is None else (), over + 1):
                columns.append(kept_on)
                held = one.bytes_at(row.moment, self.makers.held, first)
                values.append(held / scale)
            top = (row.limit - self._apart(row.moment)) / scale
            highs.addRow(-inf, top, len(columns), columns, values)
        for choice in refused:
            signs = [-1.0 if again else 1.0 for again in choice.again.values()]
            fewest = 1.0 - sum(choice.again.values())
            columns = [number[maker] for maker in choice.again]
            highs.addRow(fewest, inf, count, columns, signs)
        for most_over in (0.0, inf):
            highs.changeColBounds(over, 0.0, most_over)
            until_s = highs.getRunTime() + max(self.clock.left_s, 0.1)
            highs.setOptionValue("time_limit", until_s)
            solution = run_highs(highs).values
            if solution is not None:
                break
        else:
            return None
        again = {
            maker: place < round(solution[own])
            for own, group in enumerate(groups)
            for place, maker in enumerate(group)
        }
        again = {maker: again[maker] for maker in self.makers.every}
        if not self.makers.is_one_by_one:
            self._add_copies(again)
        return _Choice(again, bool(solution[over] > 1e-6))
