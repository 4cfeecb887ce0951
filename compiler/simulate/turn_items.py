"""What a rank does in its turns, found once for plans that differ in turns alone.

Which messages start ahead or are waited for late, and which share a bucket, is tried in
several ways. The calls and boxings stay what they are, and so does what each takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property

from partita.compiler.cost.memory import StepMemory
from partita.compiler.cost.timeline import Timeline
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.program import Phase
from partita.compiler.plan.beside import Beside
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.emitted import (
    Unit,
    are_late,
    in_buckets,
    places,
    together,
    units_alone,
)
from partita.compiler.plan.turns import END, Half, Turn, turns_of
from partita.compiler.search.group_seconds import GroupSeconds
from partita.compiler.search.joined_seconds import JoinedSeconds
from partita.compiler.simulate.boxing_items import (
    LastMessages,
    boxing_items,
    halves_of,
)
from partita.compiler.simulate.item import Item
from partita.compiler.simulate.runs import Runs


class TurnItems:
    """The items of the turns of one plan of one stage, in any buckets and halves."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.hardware = load_hardware(document.hardware)
        self._group, self._product = GroupSeconds(document), JoinedSeconds(document)
        self._is_joined = {key for keys in document.joined for key in keys}
        self._known: dict[str | tuple[Half, tuple[str, ...]], tuple[Item, ...]] = {}
        self._whole: dict[tuple[str, ...], list[Item]] = {}
        self._halves: dict[tuple[str, ...], tuple[list[Item], list[Item]]] = {}
        self._last_message_s = LastMessages(document, self.hardware)

    def turns(self, document: Document) -> list[Turn]:
        """Return the turns of a plan that differs from this one in them alone."""
        return turns_of(document, self.units(document))

    def units(self, document: Document) -> list[Unit]:
        """Return the units of a plan that differs from this one in its buckets."""
        return in_buckets(document, self.alone, lambda: self._at)

    def runs(self, document: Document) -> Runs:
        """Return ``units`` with the calls joined that no message of it parts."""
        runs = self._runs
        wanted = {*document.ahead.values(), *document.late.values()} - {END}
        if not wanted <= runs.in_forward.keys():
            runs = self._joined(self.alone, wanted)
        if not document.buckets:
            return runs
        if are_late(document, self._at):
            return self._joined(self.units(document), wanted)
        return replace(runs, units=[*together(runs.units, document.buckets)])

    def of(self, turns: Iterable[Turn]) -> list[Item]:
        """Return what a rank does in some turns, in order."""
        known, found = self._known, list[Item]()
        for turn in turns:
            first = turn[0][0]
            # A call is known by itself, see below.
            items = known.get(first) if isinstance(first, str) else None
            found += self(turn) if items is None else items
        return found

    def __call__(self, turn: Turn) -> Sequence[Item]:
        """Return what a rank does in a turn."""
        unit, half = turn
        first = unit[0]
        is_call = isinstance(first, str)
        # A call is in one group at most, a boxing may be in buckets of several sizes.
        key = first if is_call else (half, tuple([b.key for b in _boxings(unit)]))
        found = self._known.get(key)
        if found is None:
            found = (self._called(unit),) if is_call else self._boxed(unit, half)
            self._known[key] = found
        return found

    def _called(self, unit: Unit) -> Item:
        document, keys = self.document, [key for key in unit if isinstance(key, str)]
        first = keys[0]
        if len(keys) == 1:
            return Item(first, first, document.nodes[first].phase, self.seconds(unit))
        phases = [document.nodes[key].phase for key in keys]
        # The stage before waits for what any of a group makes for it.
        is_waited_for = Phase.BACKWARD_INPUT in phases
        phase = Phase.BACKWARD_INPUT if is_waited_for else phases[0]
        name = f"{first} and {len(keys) - 1} more"
        return Item(first, name, phase, self.seconds(unit))

    def seconds(self, unit: Unit) -> float:
        """Return what a call takes each time, or calls that are one."""
        first = unit[0]
        if len(unit) == 1 and isinstance(first, str):
            return self.document.nodes[first].seconds / self.document.microbatches
        keys = [item for item in unit if isinstance(item, str)]
        is_product = first in self._is_joined
        whole_s = self._product(keys) if is_product else self._group(keys)
        return whole_s / self.document.microbatches

    def _boxed(self, unit: Unit, half: Half) -> tuple[Item, ...]:
        boxings = _boxings(unit)
        keys = tuple([boxing.key for boxing in boxings])
        whole = self._whole.get(keys)
        if whole is None:
            whole = boxing_items(self.document, boxings, self.hardware)
            self._whole[keys] = whole
        items = whole
        if half is not Half.BOTH:
            halves = self._halves.get(keys)
            if halves is None:
                halves = halves_of(whole, self._last_message_s(boxings))
                self._halves[keys] = halves
            items = halves[half is Half.SECOND]
        last = items[-1]
        if last.axis is not None and all(key in self._late for key in keys):
            return (*items[:-1], replace(last, is_beside=True))
        return tuple(items)

    def timeline(self, document: Document) -> Timeline:
        """Return the memory of a plan that differs from this one in its turns."""
        return self.memory.timeline(document, self.turns(document))

    @cached_property
    def memory(self) -> StepMemory:
        """What is held in the plan's step."""
        return StepMemory(self.document)

    @cached_property
    def leaving(self) -> frozenset[str]:
        """The messages that are no sums, and that nothing waits for."""
        return self._beside.others

    @cached_property
    def alone(self) -> list[Unit]:
        """The units without buckets."""
        return units_alone(self.document)

    @cached_property
    def _at(self) -> dict[str, int]:
        """The units that calls and boxings are in, without buckets."""
        return places(self.alone)

    @cached_property
    def _runs(self) -> Runs:
        return self._joined(self.alone, frozenset())

    def _joined(self, units: Sequence[Unit], parted: AbstractSet[str]) -> Runs:
        return Runs.of(self.document, units, self.seconds, parted)

    @cached_property
    def _late(self) -> frozenset[str]:
        """The sums that nothing waits for, where there is something to pass beside."""
        return self._beside.sums if self.hardware.overlap else frozenset()

    @cached_property
    def _beside(self) -> Beside:
        return Beside(self.document)


def _boxings(unit: Unit) -> list[Boxing]:
    return [item for item in unit if isinstance(item, Boxing)]
