"""The time of a plan's step for any turns of its messages, from few items.

Calls that no message parts take together what they take one by one, whatever passes
beside them. In one piece they are simulated as fast as there are few messages, however
many calls there are. What is added up of a microbatch comes right behind its maker, and
belongs to the same piece.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Document
from partita.compiler.plan.emitted import Unit
from partita.compiler.plan.turns import Half, Turn, take_turns
from partita.compiler.simulate.item import Item
from partita.compiler.simulate.stage_items import StageItems, adding_items, link_of
from partita.compiler.simulate.turn_items import TurnItems


@dataclass(frozen=True)
class JoinedCalls:
    """The step of a plan with the calls that no message parts in one piece.

    Attributes:
        units: what the rank runs, in order; of calls that no message parts the first.
        computed: what such calls take, by the first.
        items: of all other units.
        after: what is added up of what enters.
        link_of: by axis, the link that messages pass on.
    """

    units: Sequence[Unit]
    computed: Mapping[str, Item]
    items: TurnItems
    after: tuple[Item, ...]
    link_of: Mapping[str, str]

    @classmethod
    def of(
        cls,
        document: Document,
        units: Sequence[Unit],
        forward: Sequence[bool],
        items: TurnItems,
    ) -> JoinedCalls:
        """Return the step of a plan of one stage.

        Args:
            document: the plan.
            units: what it runs, in order.
            forward: by unit, whether it is of the forward.
            items: of the plan, or one that differs in turns and buckets alone.
        """
        _, adding = adding_items(document)
        added: dict[str, float] = {}
        for item in adding:
            added[item.key] = added.get(item.key, 0.0) + item.seconds
        places = {*document.ahead.values(), *document.late.values()}
        joined: list[Unit] = []
        computed: dict[str, Item] = {}
        first = ""  # of the calls that no message parts
        seconds, is_forward = 0.0, True
        for unit, in_forward in zip(units, forward, strict=True):
            item = unit[0]
            is_parted = not isinstance(item, str) or in_forward is not is_forward
            if first and (is_parted or (places and not places.isdisjoint(unit))):
                computed[first] = _computed(first, is_forward, seconds)
                first = ""
            if not isinstance(item, str):
                joined.append(unit)
                continue
            if not first:
                first, seconds, is_forward = item, 0.0, in_forward
                joined.append(unit)
            seconds += items.seconds(unit)
            if added:
                seconds += sum([added.pop(str(key), 0.0) for key in unit])
        if first:
            computed[first] = _computed(first, is_forward, seconds)
        after = tuple(item for item in adding if item.key in added)
        links = link_of(document, items.hardware)
        return cls(joined, computed, items, after, links)

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
        turns = [Turn(unit, Half.BOTH) for unit in self.units]
        return sum([item.seconds for item in self._items(turns)])

    def _step(self, document: Document) -> StageItems:
        turns = take_turns(self.units, document.ahead, document.late, {})
        overlap = self.items.hardware.overlap
        return StageItems((), self._items(turns), (), overlap, self.link_of)

    def _items(self, turns: Iterable[Turn]) -> tuple[Item, ...]:
        own: list[Item] = []
        for turn in turns:
            first = turn.unit[0]
            own += (
                [self.computed[first]] if isinstance(first, str) else self.items(turn)
            )
        return (*own, *self.after)


def _computed(key: str, is_forward: bool, seconds: float) -> Item:
    phase = Phase.FORWARD if is_forward else Phase.BACKWARD_INPUT
    return Item(key, key, phase, seconds)
