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

from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.ir.program import Phase
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.emitted import completing_units, entering_units
from partita.compiler.plan.uses import produced, type_of
from partita.compiler.schedules.schedule import Work
from partita.compiler.search.pose import adding_seconds
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


@dataclass(frozen=True)
class StageItems:
    """What a stage does once before the microbatches, in each of them, and behind.

    ``overlap`` is that of the machine, ``link_of`` tells by mesh axis which link its
    messages pass on (simulate/beside.py).
    """

    before: tuple[Item, ...]
    microbatch: tuple[Item, ...]
    after: tuple[Item, ...]
    overlap: float = 0.0
    link_of: Mapping[str, str] = field(default_factory=dict[str, str])

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

    return StageItems(
        before=(*boxed(entering_units(document)), *zeros),
        microbatch=(*items.of(items.turns(document)), *adding),
        after=(*boxed(completing_units(document)), *_updates(document)),
        overlap=hardware.overlap,
        link_of=link_of(document, hardware),
    )


def link_of(document: Document, hardware: Hardware) -> dict[str, str]:
    """Return by mesh axis the link that its messages pass on."""
    return {
        name: hardware.link(document.mesh, axis).name
        for axis, name in enumerate(document.mesh.names)
    }


def adding_items(document: Document) -> tuple[list[Item], list[Item]]:
    """Return making zeros, and adding to them what a microbatch makes."""
    if document.microbatches == 1:
        return [], []
    hardware = load_hardware(document.hardware)
    outputs = {o.value: o for o in document.outputs if o.kind.adds_up}
    zeros: list[Item] = []
    adding: list[Item] = []
    for ref, output in outputs.items():
        if ref is None:
            continue
        type_, made = type_of(document, ref), produced(document, ref)
        phase = document.nodes[ref.key].phase
        first, both = (
            adding_seconds(type_, made, document.mesh, hardware, count)
            for count in (0, 1)
        )
        zeros.append(Item(ref.key, f"zeros for {output}", phase, first))
        adding.append(Item(ref.key, f"add to {output}", phase, both - first))
    return zeros, adding


def _updates(document: Document) -> Iterator[Item]:
    """Yield the optimizer's step on each parameter."""
    for key, node in document.nodes.items():
        if node.role is not None and node.seconds:
            name = f"update {node.role.name}"
            yield Item(key, name, Phase.UPDATE, node.seconds)
