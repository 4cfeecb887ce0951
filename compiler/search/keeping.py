"""What to keep from forward to backward, and what to make again, under a memory limit.

A *maker* is a call or a boxing of the forward. An integer program chooses
(keeping_program.py), which is told of a moment as memory turns out to be short then, up
to ``_MOST_ROUNDS`` times. It does not see all that is held. How it learns of the rest
differs where makers of equal blocks are counted together, of which it knows less.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import networkx as nx
import numpy as np

from partita.compiler.search.holdings import Holdings
from partita.compiler.search.keeping_program import Choice, KeepingProgram, Row
from partita.compiler.search.makers import MOST_ALONE, Live, Makers, Needs
from partita.compiler.search.parts import Clock

_MOST_ROUNDS = 60
_MOST_ONE_BY_ONE = 2000  # makers: 535 take 0.6 s, 2000 some seconds (2-core EPYC VM)
_MOST_REFUSED = 3  # choices ruled out one by one; then a row is corrected
_MOST_HALVINGS = 6
_CLOSE = 0.98  # of what is known to be reached, what else is not tried for
_LITTLE = 0.005  # of a limit: what a row is not changed by
_NOTHING = (0.0, 0.0)


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


def choose_keeping(held: Holdings, limit: int, clock: Clock) -> Keeping:
    """Return the cheapest way found in time to hold no more than ``limit`` bytes."""
    return _Chooser(Makers(held), limit, clock).choose()


def keeping_one_by_one(
    held: Holdings, known: Keeping, limit: int, clock: Clock
) -> Keeping:
    """Return what is known, or a cheaper way where equal blocks were counted together.

    That takes several times as long, and may be of use where a few bytes are missing:
    makers that are counted together hold the same each, as far as a row knows.
    """
    makers = Makers(held, _MOST_ONE_BY_ONE)
    if not (known.again and MOST_ALONE < len(makers.every) <= _MOST_ONE_BY_ONE):
        return known
    found = _Chooser(makers, limit, clock).choose()
    is_better = found.peak_bytes <= limit and found.seconds < known.seconds
    return found if is_better else known


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


class _Tried(NamedTuple):
    """A choice, what it holds, and whether it is another than the one before."""

    choice: Choice
    keeping: Keeping
    is_new: bool


class _Chooser:
    def __init__(self, makers: Makers, limit: int, clock: Clock) -> None:
        self.makers = makers
        self.limit = limit
        self.clock = clock
        self.program = KeepingProgram(makers, clock)

    def choose(self) -> Keeping:
        first = self._tried(Choice(dict.fromkeys(self.makers.every, False)))
        if self.makers.is_one_by_one:
            return self._one_by_one(first)
        return self._together(first)

    def keep(self, again: Collection[str]) -> Keeping:
        chosen = {m: own[0].keys[0] in again for m, own in self.makers.every.items()}
        self.makers.add_copies(chosen)
        return self._tried(Choice(chosen)).keeping

    def _is_done(self, best: Keeping) -> bool:
        return best.peak_bytes <= self.limit or self.clock.left_s <= 0

    def _one_by_one(self, last: _Tried) -> Keeping:
        """Refuse what holds too much, or correct a row by when that needs all."""
        best = last.keeping
        rows: list[Row] = []
        refused: list[Choice] = []
        has_gained = False
        for _ in range(_MOST_ROUNDS):
            if self._is_done(best):
                break
            moment = last.keeping.moment
            # A moment that comes again held more than its row knows of.
            if all(row.moment != moment for row in rows):
                rows.append(Row(moment, float(self.limit)))
            elif last.choice.is_over and not has_gained:
                break
            elif len(refused) < _MOST_REFUSED:
                refused.append(last.choice)
            else:
                rows.append(self._corrected(last))
            solved = self.program.solve(rows, refused)
            if solved is None:
                break
            last = self._tried(solved)
            has_gained = last.keeping.peak_bytes < best.peak_bytes
            best = last.keeping if has_gained else best
        return best

    def _together(self, last: _Tried) -> Keeping:
        """Keep what is needed from block to block, or ask a row for less.

        What all blocks make again, each of what the one before makes, is there from the
        first need to the last: nothing is saved. So of groups of makers that need each
        other round one is kept. What is still held beyond what a row knows, its moment
        has to hold less by that row; that is halved where nothing holds so little.
        """
        best = last.keeping
        most = dict[int, float]()
        rings: list[tuple[int, ...]] = []
        least, less = float(self.makers.apart.held.max()), 0.0
        lowered: int | None = None  # whose row was asked for less last
        for _ in range(_MOST_ROUNDS):
            if self._is_done(best) or best.peak_bytes <= least:
                break
            moment, over = last.keeping.moment, last.keeping.peak_bytes - self.limit
            if last.choice.is_over:
                less /= 2
                if lowered is None or less < _LITTLE * self.limit:
                    break
                most[lowered] += less
            elif moment not in most:
                most[moment], lowered = float(self.limit), None
            elif (ring := self._ring(last.choice)) and ring not in rings:
                rings.append(ring)
                most, lowered = dict.fromkeys(most, float(self.limit)), None
            else:
                is_same = lowered == moment and not last.is_new
                lowered, less = moment, max(over, 2 * less if is_same else 0.0)
                most[moment] -= less
            rows = [Row(*row) for row in most.items()]
            solved = self.program.solve(rows, rings=rings)
            if solved is None:
                break
            last = self._tried(solved, last)
            best = min(best, last.keeping, key=lambda keeping: keeping.peak_bytes)
        return best

    def _ring(self, choice: Choice) -> tuple[int, ...]:
        """Return groups that need each other round where all are made again, if any.

        By number, the fewest that there are; those of which one block's alone is made
        again need nothing of the one before.
        """
        groups = self.makers.groups
        number = {maker: at for at, group in enumerate(groups) for maker in group}
        many = [sum(choice.again[maker] for maker in group) > 1 for group in groups]
        pairs = (
            (number[source], number[maker])
            for maker in choice.again
            if many[number[maker]]
            for source in self.makers.sources(maker)
            if many[number[source]]
        )
        graph = nx.DiGraph([*dict.fromkeys(pairs)])
        rings = (
            nx.shortest_path(graph, next_, at)
            for own in nx.strongly_connected_components(graph)
            for at in own
            for next_ in graph[at]
            if next_ in own
        )
        return tuple(min(rings, key=len, default=()))

    def _tried(self, choice: Choice, last: _Tried | None = None) -> _Tried:
        """Count what a choice holds and takes."""
        needs = self.makers.needs_of(choice.again)
        live = self.makers.live(choice.again, needs)
        is_new = last is None or choice.again != last.choice.again
        return _Tried(choice, self._keeping(choice, needs, live), is_new)

    def _keeping(self, choice: Choice, needs: Needs, live: Live) -> Keeping:
        chosen = [
            self.makers.every[maker]
            for maker, again in choice.again.items()
            if again and maker in needs.first
        ]
        keys = frozenset(key for own in chosen for one in own for key in one.keys)
        seconds = sum(own[0].seconds for own in chosen)
        held = live.at(live.moments).astype(np.int64)
        return Keeping(keys, seconds, (*live.moments.tolist(),), (*held.tolist(),))

    def _corrected(self, last: _Tried) -> Row:
        """Return the row of a moment by which a choice holds what it does then."""
        moment, choice = last.keeping.moment, last.choice
        needs = self.makers.needs_of(choice.again)
        held = self.makers.held_at(moment, needs)
        counted = self.makers.apart_at(moment)
        for maker, again in choice.again.items():
            if_kept, if_again = held.get(maker, _NOTHING)
            is_needed = maker in needs.first
            counted += if_kept * (is_needed - again) + if_again * again
        more = last.keeping.peak_bytes - counted
        return Row(moment, self.limit - more, needs)
