"""What to make again, as an integer program: the cheapest that rows of moments allow.

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
is there if it is needed and not made again. Rows leave out what is made again for
others alone: no choice holds less. Of one that holds more the program learns by a row
in which all is needed when that choice needs it.

Of many makers, those that are alike in equal blocks are counted together: again[m] and
needed[m] are then numbers from 0 to that of the blocks. Those of the first blocks are
made again, whose backward comes last.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

import highspy

from partita.compiler.search.highs import make_highs, run_highs
from partita.compiler.search.lent import Lent, find_lent
from partita.compiler.search.makers import Makers, Needs
from partita.compiler.search.parts import Clock

_GAP = 1e-4
_GAP_TOGETHER = 1e-3  # of makers that are counted together, five times as fast
_VERY_MUCH = 1e3  # times all seconds, for exceeding the limit by all that is held


class Choice(NamedTuple):
    """Which makers work again; ``is_over`` where no choice holds so little."""

    again: dict[int, bool]
    is_over: bool = False


class Row(NamedTuple):
    """How much may be held at a moment, and when that is taken to be needed.

    Without ``needs`` what is made again for others alone is left out, which no choice
    holds less than.
    """

    moment: int
    limit: float
    needs: Needs | None = None


@dataclass(frozen=True)
class KeepingProgram:
    """The program of an assignment's makers.

    Attributes:
        makers: what could be made again.
        clock: when to end.
    """

    makers: Makers
    clock: Clock

    def solve(
        self,
        rows: Sequence[Row],
        refused: Sequence[Choice] = (),
        rings: Sequence[Sequence[int]] = (),
    ) -> Choice | None:
        """Return the cheapest choice that holds so much at most by these rows.

        ``None`` where every choice is refused, or none was found in time.

        Args:
            rows: what may be held when.
            refused: choices that are not to be found again, of makers one by one.
            rings: groups of makers, by number, of which one at least is kept whole.
        """
        highs = self._posed(rows)
        count = len(self.makers.groups)
        for choice in refused:
            signs = [-1.0 if again else 1.0 for again in choice.again.values()]
            fewest = 1.0 - sum(choice.again.values())
            columns = [self._number[maker] for maker in choice.again]
            highs.addRow(fewest, inf, count, columns, signs)
        self._part(highs, rings)
        over = 2 * count
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
            for own, group in enumerate(self.makers.groups)
            for place, maker in enumerate(group)
        }
        again = {maker: again[maker] for maker in self.makers.every}
        if not self.makers.is_one_by_one:
            self.makers.add_copies(again)
        return Choice(again, bool(solution[over] > 1e-6))

    @cached_property
    def _number(self) -> dict[int, int]:
        """The group of each maker."""
        groups = self.makers.groups
        return {maker: at for at, group in enumerate(groups) for maker in group}

    @cached_property
    def _sizes(self) -> list[float]:
        return [float(len(group)) for group in self.makers.groups]

    @cached_property
    def _lent(self) -> Sequence[Lent]:
        return find_lent(self.makers.held, self.makers.users)

    def _posed(self, rows: Sequence[Row]) -> highspy.Highs:
        """Write down again, needed, over, and what is kept on for others."""
        groups, sizes = self.makers.groups, self._sizes
        count = len(groups)
        gap = _GAP if self.makers.is_one_by_one else _GAP_TOGETHER
        highs = make_highs(max(self.clock.left_s, 0.1), 1, gap)
        seconds = [self.makers.every[group[0]][0].seconds for group in groups]
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
        for own in range(count):
            self._link(highs, own)
        lent = self._lent
        highs.addVars(len(lent), [0.0] * len(lent), [1.0] * len(lent))
        for kept_on, one in enumerate(lent, over + 1):
            for own in {self._number[user] for user in one.users}:
                highs.addRow(-inf, 0.0, 2, [own, kept_on], [1.0 / sizes[own], -1.0])
        largest = float(self.makers.apart.held.max())
        scale = max(largest, *(row.limit for row in rows), 1.0)
        for row in rows:
            self._hold(highs, row, scale)
        return highs

    def _link(self, highs: highspy.Highs, own: int) -> None:
        """Have what is made again be needed, its sources too, and copies go with it."""
        group, sizes, count = self.makers.groups[own], self._sizes, len(self._sizes)
        highs.addRow(-inf, 0.0, 2, [own, count + own], [1.0, -1.0])
        links = Counter(
            (self._number[source], source)
            for maker in group
            for source in self.makers.sources(maker)
        )
        for source in dict.fromkeys(at for at, _ in links):
            uses = [times for (at, _), times in links.items() if at == source]
            # those that are made again first lack such a source last
            without = len(group) - sum(uses)
            columns, each = [own, count + source], sum(uses) / len(uses)
            highs.addRow(-inf, without, 2, columns, [1.0, -each])
            is_copy = self.makers.every[group[0]][0].is_copy
            if is_copy and sizes[own] == sizes[source]:
                columns = [source, count + own, own]
                highs.addRow(-inf, sizes[own], 3, columns, [1.0, 1.0, -1.0])

    def _hold(self, highs: highspy.Highs, row: Row, scale: float) -> None:
        """Have no more be held at a moment than a row allows, or be over."""
        count, over = len(self._sizes), 2 * len(self._sizes)
        kept, again = [0.0] * count, [0.0] * count
        held_at = self.makers.held_at(row.moment, row.needs)
        for maker, (if_kept, if_again) in held_at.items():
            at = self._number[maker]
            kept[at] += if_kept / self._sizes[at] / scale
            again[at] += if_again / self._sizes[at] / scale
        there = [at for at in range(count) if kept[at] or again[at]]
        columns = [*there, *(count + at for at in there), over]
        values = [again[at] - kept[at] for at in there]
        values += [*(kept[at] for at in there), -1.0]
        lent = self._lent if row.needs is None else ()
        for kept_on, one in enumerate(lent, over + 1):
            columns.append(kept_on)
            first = self.makers.usual.first
            held = one.bytes_at(row.moment, self.makers.held, first)
            values.append(held / scale)
        top = (row.limit - self.makers.apart_at(row.moment)) / scale
        highs.addRow(-inf, top, len(columns), columns, values)

    def _part(self, highs: highspy.Highs, rings: Sequence[Sequence[int]]) -> None:
        """Have one group of each ring be kept whole."""
        wholes = {at: 0 for ring in rings for at in ring}
        first = highs.getNumCol()
        highs.addVars(len(wholes), [0.0] * len(wholes), [1.0] * len(wholes))
        for column, at in enumerate(wholes, first):
            wholes[at] = column
            highs.changeColIntegrality(column, highspy.HighsVarType.kInteger)
            size = self._sizes[at]
            highs.addRow(-inf, size, 2, [at, column], [1.0, size])
        for ring in rings:
            columns = [wholes[at] for at in ring]
            highs.addRow(1.0, inf, len(ring), columns, [1.0] * len(ring))
