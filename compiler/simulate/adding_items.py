"""What a rank does to add up what its microbatches make."""

from __future__ import annotations

from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.document import Document
from partita.compiler.plan.uses import produced, type_of
from partita.compiler.search.pose import adding_seconds
from partita.compiler.simulate.item import Item


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
