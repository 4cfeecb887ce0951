"""What a stage's actions hold, from the moments of one microbatch (cost/memory.py).

State is held all the time. Each microbatch adds what its forward saves, until its
backward is done: with several under way, as many times that. An item of an action holds
what it does in the plan's own moments, and what the others have saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from partita.compiler.cost.memory import (
    END_OF_MICROBATCH,
    GIVE_GRADIENTS,
    timeline,
)
from partita.compiler.cost.timeline import Timeline
from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.emitted import completing_units
from partita.compiler.plan.turns import turns_of
from partita.compiler.simulate.item import Item


@dataclass(frozen=True)
class StageMemory:
    """The bytes of one rank of a stage.

    Attributes:
        state: before the first microbatch.
        saved: of one microbatch, between its forward and its backward.
        left: what a microbatch leaves behind: gradients, unless they add up.
        during: by key of an item, the most while it runs, one microbatch being there.
        update: the most during the optimizer's step.
    """

    state: int
    saved: int
    left: int
    during: Mapping[str, int]
    update: int

    def of(self, item: Item) -> int:
        """Return what is held while an item runs, one microbatch being there."""
        if item.phase is Phase.UPDATE:
            return self.update
        return self.during.get(item.key, self.state)


def stage_memory(document: Document) -> StageMemory:
    """Return what the rank of a stage holds that needs most."""
    held = timeline(document)
    during, last = _during(document, held)
    lasting = [h for h in held.held if h.last > last]
    return StageMemory(
        state=sum(h.num_bytes for h in lasting if h.first == 0),
        saved=held.saved_bytes,
        left=sum(h.num_bytes for h in lasting if 0 < h.first <= last),
        during=during,
        update=_update(held),
    )


def _during(document: Document, held: Timeline) -> tuple[dict[str, int], int]:
    """Return the most that each item holds, and the last moment of a microbatch."""
    found: dict[str, int] = {}
    at = 1  # behind the start

    def boxing(key: str) -> None:
        nonlocal at
        first = at
        while held.moments[at].startswith(f"{key}: "):
            at += 1
        most = max(held.bytes_at[first - (at == first) : at])
        found[key] = max(most, found.get(key, 0))  # one that comes in two halves

    for unit, _ in turns_of(document):
        if isinstance(unit[0], Boxing):
            boxing(unit[0].key)
        else:
            found[unit[0]] = held.bytes_at[at]
            at += 1
    last = at - 1
    if document.microbatches > 1:
        assert held.moments[at] == END_OF_MICROBATCH
        at += 1
    for unit in completing_units(document):
        boxing(unit[0].key)
    assert held.moments[at] == GIVE_GRADIENTS
    return found, last


def _update(held: Timeline) -> int:
    """Return the most from where gradients are given to the end."""
    first = held.moments.index(GIVE_GRADIENTS)
    return max(held.bytes_at[first:])
