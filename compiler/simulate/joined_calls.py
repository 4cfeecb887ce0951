"""The time of a plan's step for any turns of its messages, from few items.

What no message parts is one item (simulate/runs.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from partita.compiler.plan.document import Document
from partita.compiler.plan.turns import Half, Turn, take_turns
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
        turns = [Turn(unit, Half.BOTH) for unit in self.runs.units]
        return sum([item.seconds for item in self._items(turns)])

    def _step(self, document: Document) -> StageItems:
        turns = take_turns(self.runs.units, document.ahead, document.late, {})
        overlap = self.items.hardware.overlap
        return StageItems((), self._items(turns), (), overlap, self.link_of)

    def _items(self, turns: Iterable[Turn]) -> tuple[Item, ...]:
        own: list[Item] = []
        for turn in turns:
            first = turn.unit[0]
            is_call = isinstance(first, str)
            own += [self.runs.computed[first]] if is_call else self.items(turn)
        return (*own, *self.runs.after)
