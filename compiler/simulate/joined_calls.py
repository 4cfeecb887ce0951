"""The time of a plan's step for any turns of its messages, from few items.

What no message parts is one item (simulate/runs.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.compiler.plan.document import Document
from partita.compiler.plan.emitted import places
from partita.compiler.plan.turns import Half, Turn, numbered_turns
from partita.compiler.simulate.item import Item
from partita.compiler.simulate.runs import Runs
from partita.compiler.simulate.stage_items import StageItems, link_of
from partita.compiler.simulate.turn_items import TurnItems


@dataclass(frozen=True)
class JoinedCalls:
    """The step of a plan with the calls that no message parts in one piece.

    Attributes:
        runs: what the rank runs, in such pieces.
        items: of all other units.
        link_of: by axis, the link that messages pass on.
    """

    runs: Runs
    items: TurnItems
    link_of: Mapping[str, str]

    @classmethod
    def of(cls, document: Document, items: TurnItems) -> JoinedCalls:
        """Return the step of a plan of one stage.

        ``items`` are of the plan, or one that differs in turns and buckets alone.
        """
        links = link_of(document, items.hardware)
        return cls(items.runs(document), items, links)

    def hidden_s(self, document: Document) -> dict[str, float]:
        """Return by axis the seconds of messages that a microbatch takes no time for.

        ``document`` differs from the plan in its turns alone, which name no call but
        those that the plan's own do, a message stands before, or the other half of the
        step.
        """
        return self._step(document).hidden_s

    @cached_property
    def apart_s(self) -> float:
        """What a microbatch takes with nothing beside anything."""
        items = self._step_in({}, {}).microbatch
        return sum([item.seconds for item in items])

    def _step(self, document: Document) -> StageItems:
        return self._step_in(document.ahead, document.late)

    def _step_in(self, ahead: Mapping[str, str], late: Mapping[str, str]) -> StageItems:
        found: list[Item] = []
        num, known = len(self.runs.units), self._known
        for number, half in numbered_turns(num, self._at, ahead, late, {}):
            own = known[half]
            items = own[number]
            if items is None:
                items = own[number] = self._items(number, half)
            found += items
        overlap = self.items.hardware.overlap
        return StageItems((), (*found, *self.runs.after), (), overlap, self.link_of)

    def _items(self, number: int, half: Half) -> Sequence[Item]:
        unit = self.runs.units[number]
        first = unit[0]
        if isinstance(first, str):
            return (self.runs.computed[first],)
        return self.items(Turn(unit, half))

    @cached_property
    def _at(self) -> dict[str, int]:
        return places(self.runs.units)

    @cached_property
    def _known(self) -> dict[Half, list[Sequence[Item] | None]]:
        """What is done in a turn, by the number of its unit."""
        return {half: [None] * len(self.runs.units) for half in Half}
