"""The fastest plan on one mesh, of as many microbatches as that takes.

More microbatches hold less and take longer. So one is tried first. Where that is
refused, many more are next if much is lacking: each number takes its share of the time.
From the first that fits on, more are tried until they are slower, as what need not be
made again may outweigh what they cost; then those between what was refused and that.
What time is left then is for those of them whose share was not enough. Once there is a
plan, no number is begun that would not end in time, as far as can be told.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from math import ceil, inf, log2

from partita.compiler.errors import BadOptions, NoSolution
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.units import parse_bytes
from partita.compiler.search.parts import OPTIMAL_GAP, Clock
from partita.compiler.search.wanted import Wanted
from partita.one_mesh.batch import Batch
from partita.one_mesh.not_faster import NotFaster
from partita.one_mesh.search import Search
from partita.whole_plans.beside_search import BesideSearch, First

_SHARE = 0.3  # of the time that is left, for each of several numbers


class _Outcome(Enum):
    """What became of a number of microbatches."""

    FITS = auto()
    SLOWER = auto()
    HOPELESS = auto()  # and more of them, too
    REFUSED = auto()
    NOT_CUT = auto()


@dataclass
class CountSearch:
    """That search of one model on one mesh.

    Where several numbers are tried, each has a part of the time that is left.

    Attributes:
        batch: the model.
        mesh: the ranks.
        clock: when to end.
        known_s: no plan is made that takes more.
    """

    batch: Batch
    mesh: Mesh
    clock: Clock
    known_s: float = inf
    plans: dict[int, First] = field(default_factory=dict[int, First])
    refusals: dict[int, NoSolution] = field(default_factory=dict[int, NoSolution])
    slower: list[NotFaster] = field(default_factory=list[NotFaster])
    _may_save: bool = False  # whether more than were tried last may be of use
    _cut_short: set[int] = field(default_factory=set[int])  # when their time was over
    _quickest_s: float = inf  # of those that were tried

    def run(self) -> First:
        """Return the fastest plan, of the microbatches that are asked for.

        Raises:
            BadOptions: when the batch cannot be cut as asked.
            NoSolution: when no plan was found that keeps to the memory limit; that of
                the number that needs least.
            NotFaster: when none takes less than is known.
        """
        asked = self.batch.options.microbatches
        count = asked if isinstance(asked, int) else 1
        self._try(count)
        if asked == "auto" and self.batch.options.train:
            self._try_more(count)
            self._try_fewer()
            self._try_longer()
        if not self.plans and self.slower:
            raise min(self.slower, key=lambda found: found.seconds or inf)
        if not self.plans:
            raise min(self.refusals.values(), key=_least_bytes)
        return self._compared(min(self.plans.values(), key=_seconds))

    def _compared(self, fastest: First) -> First:
        """Return the fastest plan with its gap to what bounds any number of them."""
        search = fastest.plan.search
        bounds_s = [
            (1 - own.plan.search.gap) * _seconds(own)
            for own in self.plans.values()
            if own.plan.search.gap is not None
        ]
        if search.gap is None:
            return fastest
        gap = 1 - min(bounds_s) / _seconds(fastest)
        if gap <= max(search.gap, OPTIMAL_GAP):
            return fastest
        is_own = search.status.startswith("optimal")
        status = f"not shown to be {search.status}" if is_own else search.status
        search = replace(search, gap=gap, status=status)
        return fastest._replace(plan=replace(fastest.plan, search=search))

    @property
    def _best_s(self) -> float:
        return min([self.known_s, *map(_seconds, self.plans.values())])

    @property
    def _is_over(self) -> bool:
        return self._best_s < inf and self.clock.left_s <= self._quickest_s

    def _try_more(self, count: int) -> None:
        while self._may_save and not self._is_over:
            for more in self._more_than(count):
                outcome = self._try(more)
                if outcome is not _Outcome.NOT_CUT:
                    break
            else:
                return
            if outcome is _Outcome.HOPELESS:
                return
            if outcome is _Outcome.SLOWER and self.plans:
                return  # still more microbatches save less memory each time
            count = more

    def _try_fewer(self) -> None:
        count = min(self.plans, default=1) // 2
        refused = max((own for own in self.refusals if own <= count), default=count)
        while count > refused and not self._is_over:
            if self._try(count) is not _Outcome.FITS:
                return
            count //= 2

    def _try_longer(self) -> None:
        """Use what time is left for the best number, and the next one below it."""
        best = min(self.plans, key=lambda count: _seconds(self.plans[count]), default=0)
        below = [count for count in self.refusals if count < best or not best]
        again = [max(below, default=0), best]
        again = [count for count in again if count in self._cut_short]
        for number, count in enumerate(again):
            if self.clock.left_s > 0 and not self._is_over:
                self._try(count, 1 / (len(again) - number))

    def _more_than(self, count: int) -> Iterator[int]:
        """Yield which number to try next, or else, where the batch cannot be cut so."""
        memory = self.batch.options.memory
        limit = None if memory is None else parse_bytes(memory)
        more = count * _times(self.refusals.get(count), limit)
        while more > count:
            yield more
            more //= 2

    def _try(self, count: int, part: float = _SHARE) -> _Outcome:
        """Plan with so many microbatches; raise what stops the first number.

        Of several numbers it has a part of the time that is left.
        """
        begun = time.perf_counter()
        is_first = not (self.plans or self.refusals or self.slower)
        try:
            planner = self.batch.planner(count, self.mesh)
        except BadOptions:
            if is_first:
                raise
            return _Outcome.NOT_CUT
        options, best_s = self.batch.options, self._best_s
        is_last = options.microbatches != "auto" or options.memory is None
        share = self.clock.share(1.0 if is_last else part)
        beside = BesideSearch(planner, share, best_s)
        hidden_s = beside.most_hidden_s if best_s < inf else 0.0
        search = Search(planner, share, Wanted(best_s + hidden_s))
        if best_s < inf and beside.least_s(search, best_s) >= best_s:
            if is_first:
                raise NotFaster(beside.free_s(search))
            return _Outcome.HOPELESS
        try:
            self.plans[count] = beside.first(search)
            outcome = _Outcome.FITS
        except NotFaster as found:
            self.slower.append(found)
            outcome = _Outcome.SLOWER
        except NoSolution as refusal:
            self.refusals[count] = refusal
            outcome = _Outcome.REFUSED
        self._may_save = beside.may_save(search)
        if share.left_s <= 0:
            self._cut_short.add(count)
        self._quickest_s = min(self._quickest_s, time.perf_counter() - begun)
        return outcome


def _seconds(first: First) -> float:
    return first.plan.predicted.seconds


def _least_bytes(refusal: NoSolution) -> float:
    return inf if refusal.least_bytes is None else refusal.least_bytes


def _times(refusal: NoSolution | None, limit: int | None) -> int:
    """Return by how much to multiply a number of microbatches, a power of two.

    Where one was refused, that is by the square of what is held too much, beside what
    stays: not all of it is of one microbatch.

    >>> _times(NoSolution("", 90, 10), 50), _times(NoSolution("", 55, 10), 50)
    (4, 2)
    """
    if refusal is None or refusal.least_bytes is None or limit is None:
        return 2
    room = max(limit - refusal.state_bytes, 1)
    over = (refusal.least_bytes - refusal.state_bytes) / room
    return 2 ** max(1, ceil(log2(max(over, 1.0) ** 2)))
