"""What a rank of a stage does, item by item, and how long each takes.

An item is a call, a fused group, a step of a boxing, or what the plan's own figures
leave to be derived: adding up what the microbatches make, the optimizer's step. What a
plan says of calls and boxings is of a whole step, a microbatch takes its part of it.
Their sum is what a plan of one stage predicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.program import Phase
from partita.compiler.plan.beside import completed_beside
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.emitted import completing_units, entering_units
from partita.compiler.plan.turns import Half
from partita.compiler.schedules.schedule import Work
from partita.compiler.simulate.adding_items import adding_items
from partita.compiler.simulate.beside import Played, play
from partita.compiler.simulate.boxing_items import boxing_items
from partita.compiler.simulate.item import Item
from partita.compiler.simulate.turn_items import TurnItems

_PHASES = {
    Work.FORWARD: (Phase.FORWARD,),
    Work.BACKWARD: (Phase.BACKWARD_INPUT, Phase.BACKWARD_WEIGHT, Phase.UPDATE),
    Work.BACKWARD_INPUT: (Phase.BACKWARD_INPUT,),
    Work.BACKWARD_WEIGHT: (Phase.BACKWARD_WEIGHT, Phase.UPDATE),
}


@dataclass(frozen=True, slots=True)
class Begun:
    """What begins in the last backward of a stage (passes/reduce_beside.py).

    Attributes:
        at: which item of a microbatch makes the gradients whole.
        first: up to the message, which passes beside what follows.
        second: what is left to do behind the backward.
    """

    at: int
    first: tuple[Item, ...]
    second: tuple[Item, ...]


@dataclass(frozen=True)
class Closed:
    """The last backward of a stage.

    Attributes:
        items: in order, messages that begin in it among them.
        played: when they begin and end.
        after: what follows it.
    """

    items: tuple[Item, ...]
    played: Played
    after: tuple[Item, ...]

    @property
    def waited_s(self) -> float:
        """How long messages pass on when the rank is done with the rest."""
        return self.played.end_s - self.played.free_s


@dataclass(frozen=True)
class StageItems:
    """What a stage does once before the microbatches, in each of them, and behind.

    ``overlap`` is that of the machine, ``link_of`` tells by mesh axis which link its
    messages pass on (simulate/beside.py). ``begun`` is what is sent of the last as soon
    as it is whole, where there are several stages.
    """

    before: tuple[Item, ...]
    microbatch: tuple[Item, ...]
    after: tuple[Item, ...]
    overlap: float = 0.0
    link_of: Mapping[str, str] = field(default_factory=dict[str, str])
    begun: tuple[Begun, ...] = ()

    @cached_property
    def by_work(self) -> dict[Work, tuple[Item, ...]]:
        """The items of an action, in order, by its work."""
        return {
            work: tuple(item for item in self.microbatch if item.phase in phases)
            for work, phases in _PHASES.items()
        }

    @cached_property
    def played(self) -> dict[Work, Played]:
        """When the items of an action begin and end, by its work."""
        return {
            work: play(own, self.overlap, self.link_of)
            for work, own in self.by_work.items()
        }

    @cached_property
    def seconds(self) -> dict[Work, float]:
        """What an action takes, by its work."""
        return {work: played.end_s for work, played in self.played.items()}

    def closed(self, work: Work) -> Closed:
        """Return what the last backward is, and what follows it."""
        if work not in self._closed:
            self._closed[work] = self._close(work)
        return self._closed[work]

    @cached_property
    def _closed(self) -> dict[Work, Closed]:
        return {}

    def _close(self, work: Work) -> Closed:
        begun: dict[int, list[Item]] = {}
        second: dict[str, tuple[Item, ...]] = {}
        for each in self.begun:
            if self.microbatch[each.at].phase in _PHASES[work]:
                begun.setdefault(each.at, []).extend(each.first)
                second[each.first[0].key] = each.second
        items: list[Item] = []
        for at, item in enumerate(self.microbatch):
            if item.phase in _PHASES[work]:
                items += (item, *begun.get(at, ()))
        after = [
            item
            for item in self.after
            if item.key not in second or item.phase is Phase.UPDATE
        ]
        left = (item for own in second.values() for item in own)
        played = play(items, self.overlap, self.link_of)
        return Closed(tuple(items), played, (*left, *after))

    @cached_property
    def hidden_s(self) -> dict[str, float]:
        """By axis, what a microbatch takes less than its items do one by one."""
        found: dict[str, float] = {}
        for work in (Work.FORWARD, Work.BACKWARD):
            phases = _PHASES[work]
            items = [item for item in self.microbatch if item.phase in phases]
            beside = [item for item in items if item.is_beside]
            sent_s = sum([item.seconds for item in beside])
            if not sent_s:
                continue
            one_by_one_s = sum([item.seconds for item in items])
            saved_s = one_by_one_s - play(items, self.overlap, self.link_of).end_s
            for item in beside:
                assert item.axis is not None
                part_s = saved_s * item.seconds / sent_s
                found[item.axis] = found.get(item.axis, 0.0) + part_s
        return found


def stage_items(document: Document, items: TurnItems | None = None) -> StageItems:
    """Return what a rank of the stage does that ``document`` is the plan of.

    ``items`` are known of a plan that differs in its turns and buckets alone.
    """
    zeros, adding = adding_items(document)
    items = items or TurnItems(document)
    hardware = items.hardware

    def boxed(units: Iterable[Sequence[Boxing]]) -> Iterator[Item]:
        return (item for u in units for item in boxing_items(document, u, hardware))

    done, maker = _in_order(items, document, adding)
    units = completing_units(document)
    begun: list[Begun] = []
    for unit in (units[at] for at in completed_beside(document)):
        first, second = (
            tuple(boxing_items(document, unit, hardware, half))
            for half in (Half.FIRST, Half.SECOND)
        )
        begun.append(Begun(max(maker[b.producer] for b in unit), first, second))
    return StageItems(
        before=(*boxed(entering_units(document)), *zeros),
        microbatch=tuple(done),
        after=(*boxed(units), *_updates(document)),
        overlap=hardware.overlap,
        link_of=link_of(document, hardware),
        begun=tuple(sorted(begun, key=lambda each: each.at)),
    )


def _in_order(
    items: TurnItems, document: Document, adding: Sequence[Item]
) -> tuple[list[Item], dict[str, int]]:
    """Return what a microbatch does, and by call what it is done with there.

    What a call makes is added up right behind it.
    """
    added: dict[str, list[Item]] = {}
    for item in adding:
        added.setdefault(item.key, []).append(item)
    found: list[Item] = []
    maker: dict[str, int] = {}
    for turn in items.turns(document):
        found += items(turn)
        keys = [key for key in turn.unit if isinstance(key, str)]
        for key in keys:
            found += added.pop(key, ())
        maker |= dict.fromkeys(keys, len(found) - 1)
    found += (item for left in added.values() for item in left)  # of what enters
    return found, maker


def link_of(document: Document, hardware: Hardware) -> dict[str, str]:
    """Return by mesh axis the link that its messages pass on."""
    return {
        name: hardware.link(document.mesh, axis).name
        for axis, name in enumerate(document.mesh.names)
    }


def _updates(document: Document) -> Iterator[Item]:
    """Yield the optimizer's step on each parameter."""
    for key, node in document.nodes.items():
        if node.role is not None and node.seconds:
            name = f"update {node.role.name}"
            yield Item(key, name, Phase.UPDATE, node.seconds)
