"""What a rank holds over a simulated step, by category.

As ``compiler/simulate`` has it: state all the time, what each microbatch saved from its
forward to its backward, and, while an item runs, what it needs in the moments of the
plan's own timeline. Here every amount is a row of numbers, one for each category.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.compiler.cost.memory import (
    END_OF_MICROBATCH,
    GIVE_GRADIENTS,
    timeline,
)
from partita.compiler.cost.timeline import Category, Held, Timeline
from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Document
from partita.compiler.plan.stages import stage_documents
from partita.compiler.schedules.schedule import Work
from partita.compiler.simulate.item import Item
from partita.compiler.simulate.pipeline import Event
from partita.compiler.simulate.plan import Once, SimulatedStep

Amounts = NDArray[np.int64]
"""Bytes, one for each category, in their order."""

MOST_SAMPLES = 400
"""Of a curve; of those that fall together the highest is kept."""

_NUMBER = {category: number for number, category in enumerate(Category)}


def memory_curves(document: Document, step: SimulatedStep) -> list[dict[str, Any]]:
    """Return, by row of the schedule, when what a rank holds changes, and to what.

    ``bytes`` has the amounts of each category in turn.
    """
    stages = [
        _StageAmounts(timeline(part), document.microbatches)
        for part in stage_documents(document)
    ]
    found: list[dict[str, Any]] = []
    for row in range(len(step.ends)):
        curve = _Curve(step, stages, row)
        curve.fill()
        times, amounts = _thinned(curve.times, np.array(curve.amounts), step.seconds)
        found.append({"times": times, "bytes": amounts.T.tolist()})
    return found


@dataclass(frozen=True)
class _StageAmounts:
    """The timeline of one rank of a stage, added up by category."""

    held: Timeline
    microbatches: int

    @cached_property
    def at(self) -> Amounts:
        """By moment, what is held."""
        moments = self.held.moments
        change = np.zeros((len(moments) + 1, len(Category)), np.int64)
        for item in self.held.held:
            number = _NUMBER[item.category]
            change[item.first, number] += item.num_bytes
            change[item.last + 1, number] -= item.num_bytes
        return change.cumsum(axis=0)[:-1]

    @cached_property
    def after(self) -> int:
        """The moment that follows one microbatch."""
        ends = END_OF_MICROBATCH if self.microbatches > 1 else GIVE_GRADIENTS
        return len(self.held.moments) - 1 - self.held.moments[::-1].index(ends)

    @cached_property
    def state(self) -> Amounts:
        """What is held before the first microbatch and behind the last."""
        return _sum(h for h in self._lasting if h.first == 0)

    @cached_property
    def left(self) -> Amounts:
        """What a microbatch leaves behind."""
        return _sum(h for h in self._lasting if 0 < h.first < self.after)

    @property
    def _lasting(self) -> Iterable[Held]:
        return (h for h in self.held.held if h.last >= self.after)

    @cached_property
    def saved(self) -> Amounts:
        """What lies between the forward and the backward of one microbatch."""
        return _sum(h for h in self.held.held if h.category is Category.SAVED)

    @cached_property
    def update(self) -> Amounts:
        """The most from where gradients are given to the end."""
        first = len(self.held.moments) - 1
        first -= self.held.moments[::-1].index(GIVE_GRADIENTS)
        return _most(self.at[first:])

    @cached_property
    def during(self) -> Mapping[str, Amounts]:
        """By key of an item, the most while it runs, one microbatch being there."""
        moments: dict[str, list[int]] = {}
        for number, name in enumerate(self.held.moments):
            boxing, parted, _ = name.rpartition(": ")
            moments.setdefault(name, []).append(number)
            if parted:
                moments.setdefault(boxing, []).append(number)
        return {key: _most(self.at[numbers]) for key, numbers in moments.items()}

    def of(self, item: Item) -> Amounts:
        """Return what is held while an item runs, one microbatch being there."""
        if item.phase is Phase.UPDATE:
            return self.update
        return self.during.get(item.key, self.state)


class _Curve:
    """The samples of one row, as they come; see compiler/simulate/timetable.py."""

    def __init__(
        self, step: SimulatedStep, stages: Sequence[_StageAmounts], row: int
    ) -> None:
        self.step = step
        self.row = row
        own = [s for s, at in enumerate(step.schedule.rank_of) if at == row]
        self.stages = {number: stages[number] for number in own}
        nothing = np.zeros(len(Category), np.int64)
        self.left = dict.fromkeys(own, nothing)
        self.live = dict.fromkeys(own, 0)
        self.times: list[float] = []
        self.amounts: list[Amounts] = []

    def fill(self) -> None:
        self._note(0.0, self._resting())
        self._once(self.step.before[self.row], 0.0)
        for event in self.step.run.compute[self.row]:
            self._act(event)
        end = self._once(self.step.after[self.row], self.step.ends[self.row])
        self._note(end, self._resting())

    def _act(self, event: Event) -> None:
        number, work = event.action.stage, event.action.work
        stage, is_new = self.stages[number], work is Work.FORWARD
        around = self._resting() - self._resting_of(number)
        around = around + stage.saved * (self.live[number] - (not is_new))
        items = self.step.stages[number]
        times = items.played[work].times
        for item, (start, _) in zip(items.by_work[work], times, strict=True):
            if not item.is_beside:
                self._note(event.start_s + start, around + stage.of(item))
        self.live[number] += is_new - work.frees
        if work.frees:
            self.left[number] = stage.left
        self._note(event.end_s, self._resting())

    def _once(self, things: Iterable[Once], now: float) -> float:
        for once in things:
            if once.sender is None:
                elsewhere = self._resting() - self._resting_of(once.stage)
                self._note(now, elsewhere + self.stages[once.stage].of(once.item))
            now += once.item.seconds
        return now

    def _resting_of(self, number: int) -> Amounts:
        stage = self.stages[number]
        return stage.state + self.left[number] + stage.saved * self.live[number]

    def _resting(self) -> Amounts:
        return np.sum([self._resting_of(number) for number in self.stages], axis=0)

    def _note(self, time_s: float, amounts: Amounts) -> None:
        if not self.amounts or not np.array_equal(self.amounts[-1], amounts):
            self.times.append(time_s)
            self.amounts.append(amounts)


def _sum(items: Iterable[Held]) -> Amounts:
    found = np.zeros(len(Category), np.int64)
    for item in items:
        found[_NUMBER[item.category]] += item.num_bytes
    return found


def _most(amounts: Amounts) -> Amounts:
    """Return the amounts of the moment at which they add up to most."""
    return amounts[amounts.sum(axis=1).argmax()]


def _thinned(
    times: list[float], amounts: Amounts, seconds: float
) -> tuple[list[float], Amounts]:
    """Keep, of the samples in one part of the step, the highest, and the first of all.

    Each but the first stands where its part begins, so that nothing lies lower than it
    is for longer than a part lasts.
    """
    if len(times) <= MOST_SAMPLES:
        return times, amounts
    totals = amounts.sum(axis=1)
    highest: dict[int, int] = {}
    for number, time_s in enumerate(times):
        part = min(int(time_s / seconds * MOST_SAMPLES), MOST_SAMPLES - 1)
        if part not in highest or totals[number] > totals[highest[part]]:
            highest[part] = number
    kept = sorted({0, *highest.values(), len(times) - 1})
    return [times[number] for number in kept], amounts[kept]
