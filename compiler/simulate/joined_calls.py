"""The time of a plan's step for any turns of its messages, from few items.

Calls that no message parts take together what they take one by one, whatever passes
beside them. In one piece they are simulated as fast as there are few messages, however
many calls there are; sums in another order differ in their last digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Document
from partita.compiler.plan.emitted import Unit, is_forward, key_of
from partita.compiler.plan.turns import Half, Turn, take_turns
from partita.compiler.simulate.item import Item
from partita.compiler.simulate.stage_items import StageItems, adding_items, link_of
from partita.compiler.simulate.turn_items import TurnItems


@dataclass(frozen=True)
class JoinedCalls:
    """The step of a plan with the calls that no message parts in one piece.

    Attributes:
        units: what the rank runs, in order; all calls that no message parts are one.
        computed: what these take, by the first of them.
        items: of all other units.
        after: what follows.
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
        items: TurnItems,
    ) -> JoinedCalls:
        """Return the step of a plan of one stage; ``units`` and ``items`` are its."""
        joined: list[Unit] = []
        computed: dict[str, Item] = {}
        parts = groupby(
            units, lambda unit: (isinstance(unit[0], str), is_forward(document, unit))
        )
        for (are_calls, forward), part in parts:
            own = list(part)
            if not are_calls:
                joined += own
                continue
            keys = tuple([item for unit in own for item in unit])
            first = key_of(keys[0])
            each = [item for unit in own for item in items(Turn(unit, Half.BOTH))]
            phase = Phase.FORWARD if forward else Phase.BACKWARD_INPUT
            seconds = sum([item.seconds for item in each])
            computed[first] = Item(first, first, phase, seconds)
            joined.append(keys)
        _, adding = adding_items(document)
        links = link_of(document, items.hardware)
        return cls(joined, computed, items, tuple(adding), links)

    def seconds(self, document: Document) -> float:
        """Return what a microbatch takes, less what is hidden of it.

        ``document`` differs from the plan in its turns alone, which name no call but
        those that a message stands before, or the other half of the step.
        """
        own: list[Item] = []
        for turn in take_turns(self.units, document.ahead, document.late, {}):
            computed = self.computed.get(key_of(turn.unit[0]))
            own += self.items(turn) if computed is None else [computed]
        all_ = (*own, *self.after)
        overlap = self.items.hardware.overlap
        step = StageItems((), all_, (), overlap, self.link_of)
        apart_s = sum([item.seconds for item in all_])
        return apart_s - sum(step.hidden_s.values())
