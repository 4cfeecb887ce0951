"""Which messages of a plan start before they are needed, and which are waited for late.

A parameter that is gathered for use, in the forward or again in the backward, is there
from the start: its message can start while what comes before is computed. What brings
a gradient to where it is stored need not be waited for, but keeps what it was given in
memory until it is. So at most so many are under way: parameters are gathered for the
next place that uses some, or the next two, while those of one are in use; a gradient's
message is waited for right before the next starts, or the one behind that.

Of both the number is taken with which the simulated step is fastest, the least of those
that are about as fast. Under a memory limit those stay where they were that would be
under way when more is held than may be.

Source: Y. Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
Parallel", VLDB 2023, sections 3.3 and 3.4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from partita.compiler.cost.timeline import Timeline
from partita.compiler.plan.beside import sends
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.emitted import Unit, key_of
from partita.compiler.plan.turns import END, Half, Turn
from partita.compiler.simulate.hidden import one_by_one, without
from partita.compiler.simulate.joined_calls import JoinedCalls
from partita.compiler.simulate.turn_items import TurnItems

D = TypeVar("D", bound=Document)

_UNDER_WAY = (1, 2)
_NOTICEABLE = 1e-3
"""Of a step's seconds: what one more under way has to save."""


def with_turns(document: D, items: TurnItems | None = None) -> D:
    """Return a plan of one stage with messages that pass beside computing, if it pays.

    Where its machine computes while messages pass; elsewhere all are waited for at
    once. A plan that keeps to its memory limit does so then. It predicts the
    seconds that its step takes so, and states the bytes that it did.

    ``items`` are those of a plan that differs in its turns and buckets alone.
    """
    items = items or TurnItems(document)
    found, hidden_s = turned(document, items, document.options.memory_bytes)
    is_told = found is document and document.predicted.hidden_by_part
    if is_told or not items.hardware.overlap:
        return found
    apart = one_by_one(found.predicted)
    return replace(found, predicted=without(apart, hidden_s, found.microbatches))


def turned(
    document: D, items: TurnItems, limit: int | None
) -> tuple[D, Mapping[str, float]]:
    """Return the plan that ``with_turns`` does, which states the figures that it did.

    With it come, by axis, the seconds that a microbatch of it hides.

    Args:
        document: a plan of one stage.
        items: those of a plan that differs in its turns and buckets alone.
        limit: the bytes that a rank may hold.
    """
    plain = replace(document, ahead={}, late={})
    if not items.hardware.overlap:
        return plain, {}
    messages = _Messages.of(plain, items)
    found, hidden_s = messages.fastest(plain, limit)
    is_same = (found.ahead, found.late) == (document.ahead, document.late)
    return document if is_same else found, hidden_s


@dataclass(frozen=True)
class _Messages:
    """What of a plan can pass beside computing.

    Attributes:
        units: what the rank runs, in order; calls that no message parts are one piece.
        keys: by unit that can, the boxing that it is told by.
        gathered: the units that gather parameters, those together that no call parts;
            the lists of the forward, then those of the backward.
        late: the units that nothing waits for.
        is_forward: whether a unit is of the forward.
        step: what is simulated of it.
        items: of the plan, or one that differs in its turns and buckets alone.
    """

    units: Sequence[Unit]
    keys: Mapping[int, str]
    gathered: Sequence[Sequence[Sequence[int]]]
    late: Sequence[int]
    is_forward: Sequence[bool]
    step: JoinedCalls
    items: TurnItems

    @classmethod
    def of(cls, document: Document, items: TurnItems) -> _Messages:
        step = JoinedCalls.of(document, items)
        units = step.runs.units
        first_of = {key: keys[0] for keys in document.buckets for key in keys}
        leaving = items.leaving
        forward = [step.runs.in_forward[key_of(unit[0])] for unit in units]
        keys: dict[int, str] = {}
        stands: dict[bool, list[list[int]]] = {True: [], False: []}
        late: list[int] = []
        is_new = True
        for number, unit in enumerate(units):
            if isinstance(unit[0], str):  # no call shares a unit with a boxing
                is_new = True
                continue
            boxings = [item for item in unit if isinstance(item, Boxing)]
            key = boxings[0].key
            if all(b.key in leaving for b in boxings):
                late.append(number)
            elif all(_gathers(document, b) for b in boxings):
                own = stands[forward[number]]
                if is_new or not own:
                    own.append([])
                own[-1].append(number)
                is_new = False
            else:
                continue
            keys[number] = first_of.get(key, key)
        gathered = [own for own in (stands[True], stands[False]) if own]
        return cls(units, keys, gathered, late, forward, step, items)

    def fastest(self, plain: D, limit: int | None) -> tuple[D, Mapping[str, float]]:
        """Return the plan with those whose simulated step is fastest, or as it was.

        With it come, by axis, the seconds that a microbatch hides. What more than all
        of them would have to hide is not looked at under a limit, which takes a while.
        """
        best, hidden = plain, self.step.hidden_s(plain)
        hidden_s = sum(hidden.values())
        least_s = _NOTICEABLE * (self.step.apart_s - hidden_s)
        for num in _UNDER_WAY if self.gathered or self.late else ():
            other = replace(plain, ahead=self.ahead(num), late=self.behind(num))
            others = self.step.hidden_s(other)
            if sum(others.values()) > hidden_s + least_s and limit is not None:
                other = self._fitting(other, limit)
                others = self.step.hidden_s(other)
            other_s = sum(others.values())
            if other_s > hidden_s + least_s:
                best, hidden, hidden_s = other, others, other_s
        return best, hidden

    def _fitting(self, document: D, limit: int) -> D:
        """Return the plan without what passes beside while more is held than may be."""
        while document.ahead or document.late:
            turns = self.items.turns(document)
            held = self.items.memory.timeline(document, turns)
            over = [at for at, size in enumerate(held.bytes_at) if size > limit]
            if not over:
                break
            crowded = _turns_at(held, turns, over)
            kept = {
                key
                for key, (first, second) in _spans(document, turns).items()
                if crowded.isdisjoint(range(first, second))
            }
            if len(kept) == len(document.ahead) + len(document.late):
                kept = set[str]()  # what is over stands on none of them
            document = replace(
                document,
                ahead={key: at for key, at in document.ahead.items() if key in kept},
                late={key: at for key, at in document.late.items() if key in kept},
            )
        return document

    def ahead(self, num: int) -> dict[str, str]:
        """Return what starts ahead, where, with so many places under way."""
        found: dict[str, str] = {}
        for stands in self.gathered:
            for number, stand in enumerate(stands):
                behind = stands[number - num][-1] + 1 if number >= num else 0
                place = self._call_from(behind, self.is_forward[stand[0]])
                if place < stand[0]:
                    key = self.units[place][0]
                    assert isinstance(key, str)
                    found |= {self.keys[unit]: key for unit in stand}
        return found

    def behind(self, num: int) -> dict[str, str]:
        """Return what is waited for late, before what, with so many under way."""
        places = [self.keys[unit] for unit in self.late[num:]] + [END] * num
        return {
            self.keys[unit]: place
            for unit, place in zip(self.late, places, strict=False)
        }

    def _call_from(self, number: int, is_forward: bool) -> int:
        """Return the first unit of calls from a place on, in one part of the step."""
        while isinstance(self.units[number][0], Boxing) or (
            self.is_forward[number] is not is_forward
        ):
            number += 1
        return number


def _gathers(document: Document, boxing: Boxing) -> bool:
    """Whether a boxing sends what enters the program, for calls to use."""
    is_there = document.nodes[boxing.producer].role is not None
    return is_there and sends(boxing) and boxing.consumers[0] in document.nodes


def _spans(document: Document, turns: Sequence[Turn]) -> dict[str, tuple[int, int]]:
    """Return by message the turns in which it starts, and is waited for."""
    found: dict[str, tuple[int, int]] = {}
    first_of = {key: keys[0] for keys in document.buckets for key in keys}
    started: dict[str, int] = {}
    for number, (unit, half) in enumerate(turns):
        if half is Half.BOTH:
            continue
        item = unit[0]
        assert isinstance(item, Boxing)
        key = first_of.get(item.key, item.key)
        if half is Half.FIRST:
            started[key] = number
        else:
            found[key] = started[key], number
    return found


def _turns_at(held: Timeline, turns: Sequence[Turn], over: Sequence[int]) -> set[int]:
    """Return the turns that moments of a timeline are of, those behind all left out."""
    of_moment: list[int] = [-1]  # the start
    for number, (unit, _) in enumerate(turns):
        of_moment += [number] * len(list(_moments_of(held, unit, len(of_moment))))
    return {of_moment[at] for at in over if at < len(of_moment)}


def _moments_of(held: Timeline, unit: Unit, at: int) -> Iterator[int]:
    """Yield the moments from one on that are of a unit."""
    item = unit[0]
    if isinstance(item, str):
        yield at
        return
    while held.moments[at].startswith(f"{item.key}: "):
        yield at
        at += 1
