"""The calls of a plan that no message parts, in one piece each.

Together they take what they take one by one, whatever passes beside them. In one piece
they are simulated as fast as there are few messages, however many calls there are. What
is added up of a microbatch comes right behind its maker, and belongs to the same piece.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Document
from partita.compiler.plan.emitted import Unit, is_forward
from partita.compiler.simulate.adding_items import adding_items
from partita.compiler.simulate.item import Item


@dataclass(frozen=True)
class Runs:
    """The units of a plan, of calls that no message parts the first alone.

    Attributes:
        units: those, in order; each is told by the key of its first item.
        computed: what such calls take, by the first.
        in_forward: whether a unit is of the forward.
        after: what is added up of what enters.
    """

    units: Sequence[Unit]
    computed: Mapping[str, Item]
    in_forward: Mapping[str, bool]
    after: tuple[Item, ...]

    @classmethod
    def of(
        cls,
        document: Document,
        units: Sequence[Unit],
        seconds: Callable[[Unit], float],
        parted: AbstractSet[str] = frozenset(),
    ) -> Runs:
        """Return the units of a plan of one stage with their calls joined.

        Args:
            document: the plan.
            units: what it runs, in order.
            seconds: what a unit of calls takes.
            parted: calls that begin a piece whatever stands before them.
        """
        _, adding = adding_items(document)
        added: dict[str, float] = {}
        for item in adding:
            added[item.key] = added.get(item.key, 0.0) + item.seconds
        joined: list[Unit] = []
        computed: dict[str, float] = {}
        in_forward: dict[str, bool] = {}
        first = ""  # of the calls that no message parts
        nodes, was_forward = document.nodes, True
        for unit in units:
            item = unit[0]
            if not isinstance(item, str):
                joined.append(unit)
                in_forward[item.key] = is_forward(document, unit)
                first = ""
                continue
            forward = nodes[item].phase is Phase.FORWARD
            is_parted = not first or was_forward is not forward
            if is_parted or not parted.isdisjoint(unit):
                joined.append((item,))
                in_forward[item] = was_forward = forward
                computed[item] = 0.0
                first = item
            computed[first] += seconds(unit)
            if added:
                computed[first] += sum([added.pop(str(k), 0.0) for k in unit])
        items = {key: _item(key, in_forward[key], s) for key, s in computed.items()}
        after = tuple(item for item in adding if item.key in added)
        return cls(joined, items, in_forward, after)


def _item(key: str, in_forward: bool, seconds: float) -> Item:
    phase = Phase.FORWARD if in_forward else Phase.BACKWARD_INPUT
    return Item(key, key, phase, seconds)
