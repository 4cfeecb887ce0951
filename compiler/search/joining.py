"""Which products of one tensor become one product: where that takes less time.

One product of more columns fills its tiles better, reads once what all have in common
and is one call.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from partita.compiler.ir.joined import LEFT
from partita.compiler.plan.document import Document
from partita.compiler.plan.joined import Joinable, Rows
from partita.compiler.search.joined_seconds import JoinedSeconds


@dataclass(frozen=True, slots=True)
class Joined:
    """Keys of products that become one, in the program's order; what that saves."""

    keys: tuple[str, ...]
    saved_s: float


def choose_joined(plan: Document) -> tuple[Joined, ...]:
    """Return the products of a plan of one stage that become one where that pays."""
    seconds, rows = JoinedSeconds(plan), Rows()
    alike: dict[Hashable, dict[str, Joinable]] = {}
    for key in plan.order:
        if plan.nodes[key].op in LEFT:
            found = seconds.joinables.of(key)
            if found is not None:
                alike.setdefault(found.alike, {})[key] = found
    chosen: list[Joined] = []
    for members in alike.values():
        joined = priced(plan, tuple(members), seconds)
        if len(members) > 1 and joined.saved_s > 0:
            if rows.lay([*members.values()]) is None:
                chosen.append(joined)
    return tuple(chosen)


def priced(plan: Document, keys: tuple[str, ...], seconds: JoinedSeconds) -> Joined:
    """Return products that become one with what that saves, which may be negative."""
    apart_s = sum(plan.nodes[key].seconds for key in keys)
    return Joined(keys, apart_s - seconds(keys))
