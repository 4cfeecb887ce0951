"""The order of what a rank does, messages that pass meanwhile in two halves.

What a boxing does up to its last collective, that begun, is its first half; the second
waits for that and does what is left. Where the plan says so, the first stands before
the unit's own place (``Document.ahead``: a parameter is gathered before it is used), or
the second behind it (``Document.late``: a gradient is scattered while the backward goes
on). Views of what comes late stand behind its second half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple

from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.emitted import Unit, emitted_units, places

END = "end"
"""In ``Document.late``: behind all that the program computes."""


class Half(Enum):
    """What of a unit has its turn."""

    BOTH = auto()
    FIRST = auto()
    SECOND = auto()


class Turn(NamedTuple):
    """What a rank does next: a unit, or half of one."""

    unit: Unit
    half: Half


def turns_of(document: Document, units: Sequence[Unit] | None = None) -> list[Turn]:
    """Return what a rank does, in order, of a plan of one stage.

    ``units`` are those of ``emitted_units``, where they are known.
    """
    units = emitted_units(document) if units is None else units
    if not (document.ahead or document.late):
        return [Turn(unit, Half.BOTH) for unit in units]
    at = places(units)
    views = _views(document, units, at)
    turns = numbered_turns(len(units), at, document.ahead, document.late, views)
    return [Turn(units[number], half) for number, half in turns]


def numbered_turns(
    num: int,
    at: Mapping[str, int],
    ahead: Mapping[str, str],
    late: Mapping[str, str],
    views: Mapping[int, Sequence[int]],
) -> list[tuple[int, Half]]:
    """Return the turns of units, of which some come in two halves, by their numbers.

    Args:
        num: of the units.
        at: the number of the unit that a call or boxing is in.
        ahead: as ``Document.ahead``.
        late: as ``Document.late``.
        views: by unit that comes late, what uses it, in order.
    """
    first = _by_place(ahead, at, num)
    second = _by_place(late, at, num)
    is_ahead = {at[key] for key in ahead}
    is_late = {at[key] for key in late}
    followers = {view for own in views.values() for view in own}
    found: list[tuple[int, Half]] = []

    def end(unit: int) -> None:
        found.append((unit, Half.SECOND))
        found.extend((view, Half.BOTH) for view in views.get(unit, ()))

    special = sorted({*first, *second, *is_ahead, *is_late, *followers})
    begun = 0
    for place in special:
        if place == num:  # what is waited for behind all
            break
        found += [(plain, Half.BOTH) for plain in range(begun, place)]
        begun = place + 1
        for own in second.get(place, ()):
            end(own)
        found += [(early, Half.FIRST) for early in first.get(place, ())]
        if place in is_ahead:
            found.append((place, Half.SECOND))
        elif place in is_late:
            found.append((place, Half.FIRST))
        elif place not in followers:
            found.append((place, Half.BOTH))
    found += [(plain, Half.BOTH) for plain in range(begun, num)]
    for own in second.get(num, ()):
        end(own)
    return found


def _by_place(
    turns: Mapping[str, str], at: Mapping[str, int], end: int
) -> dict[int, list[int]]:
    """Return by place the units half of which stands right before it, in order."""
    found: dict[int, list[int]] = {}
    for key, place in turns.items():
        found.setdefault(end if place == END else at[place], []).append(at[key])
    return {place: sorted(units) for place, units in found.items()}


def _views(
    document: Document, units: Sequence[Unit], at: Mapping[str, int]
) -> dict[int, list[int]]:
    """Return by unit that comes late what uses it, and what uses that, in order."""
    asking: dict[int, list[str]] = {}
    for late in sorted(at[key] for key in document.late):
        boxings = [item for item in units[late] if isinstance(item, Boxing)]
        users = [user for boxing in boxings for user in boxing.consumers]
        asking[late] = [key for key in users if key in at]  # the others leave
    users_of: dict[str, list[str]] = {}
    if any(asking.values()):
        for key in document.order:
            for ref in document.nodes[key].operands:
                users_of.setdefault(ref.key, []).append(key)
    found: dict[int, list[int]] = {}
    for late, waiting in asking.items():
        own: set[int] = set()
        while waiting:
            key = waiting.pop()
            if key in at:
                own.add(at[key])
                waiting += users_of.get(key, ())
        found[late] = sorted(own)
    return found
