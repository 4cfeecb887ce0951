"""Check that messages can start as early, and be waited for as late, as a plan says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from partita.compiler.errors import BadPlan
from partita.compiler.ir.program import Phase
from partita.compiler.plan.beside import leaving_alone, sends
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.emitted import Unit, emitted_units, key_of, places
from partita.compiler.plan.turns import END


def check_turn_keys(document: Document) -> None:
    """Check that a plan says of its boxings alone when their messages pass.

    Raises:
        BadPlan: naming what is none.
    """
    known = {boxing.key for boxing in document.boxings}
    for path, turns in (("ahead", document.ahead), ("late", document.late)):
        for key in turns:
            if key not in known:
                raise BadPlan(f"{path}: found {key!r}, wanted the key of a boxing")


def check_turns(document: Document) -> None:
    """Check when the messages of a stage start, and when they are waited for.

    * each is of a boxing of the program, of a bucket its first, that sends something
    * its place is a call or another boxing, in the same of forward and backward
    * what starts ahead is there: it enters the program
    * what is waited for late only leaves the program

    Raises:
        BadPlan: naming the boxing, what was found and what is wanted.
    """
    if not (document.ahead or document.late):
        return
    units = emitted_units(document)
    checker = _Checker(document, units, places(units))
    for key, place in document.ahead.items():
        checker.check_ahead(f"ahead.{key}", key, place)
    leaving = leaving_alone(document)
    for key, place in document.late.items():
        checker.check_late(f"late.{key}", key, place, leaving)


@dataclass(frozen=True)
class _Checker:
    document: Document
    units: Sequence[Unit]
    at: Mapping[str, int]

    def check_ahead(self, path: str, key: str, place: str) -> None:
        unit = self._check_message(path, key)
        self._check_place(path, unit, place)
        if self.at[place] > self.at[key]:
            raise BadPlan(f"{path}: found {place!r}, which comes behind it")
        for boxing in _boxings(unit):
            if self.document.nodes[boxing.producer].role is None:
                raise BadPlan(
                    f"{path}: {boxing.producer!r} is computed; want what enters the "
                    "program"
                )

    def check_late(
        self, path: str, key: str, place: str, leaving: frozenset[str]
    ) -> None:
        unit = self._check_message(path, key)
        if key in self.document.ahead:
            raise BadPlan(f"{path}: it starts ahead already; want one of the two")
        if place != END:
            self._check_place(path, unit, place)
            if self.at[place] <= self.at[key]:
                raise BadPlan(f"{path}: found {place!r}, which does not come behind it")
        for boxing in _boxings(unit):
            if boxing.key not in leaving:
                raise BadPlan(
                    f"{path}: {boxing.consumers[0]!r} needs it; want what only leaves "
                    "the program"
                )

    def _check_message(self, path: str, key: str) -> Unit:
        if key not in self.at:
            raise BadPlan(f"{path}: the program has no such boxing")
        unit = self.units[self.at[key]]
        first = next((k for k in self.document.buckets if key in k), (key,))[0]
        if key != first:
            raise BadPlan(f"{path}: wanted {first!r}, the first of its bucket")
        boxings = list(_boxings(unit))
        if len(boxings) < len(unit) or not all(map(sends, boxings)):
            raise BadPlan(f"{path}: it sends nothing; want a boxing that does")
        return unit

    def _check_place(self, path: str, unit: Unit, place: str) -> None:
        if place not in self.at:
            raise BadPlan(f"{path}: found {place!r}, wanted a call or a boxing")
        there = self.units[self.at[place]][0]
        if self._is_forward(unit[0]) is not self._is_forward(there):
            raise BadPlan(
                f"{path}: {key_of(there)!r} is in the other one of forward and backward"
            )

    def _is_forward(self, item: str | Boxing) -> bool:
        if isinstance(item, Boxing):
            first = item.consumers[0]
            item = first if first in self.document.nodes else item.producer
        return self.document.nodes[item].phase is Phase.FORWARD


def _boxings(unit: Unit) -> Iterator[Boxing]:
    return (item for item in unit if isinstance(item, Boxing))
