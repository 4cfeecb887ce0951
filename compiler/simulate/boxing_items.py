"""What a rank does for a boxing, or for those of a bucket, item by item.

Where it comes in two halves (plan/turns.py), the first ends with its last message,
which passes beside what follows, and the second waits for that. The copies around a
message are made by the rank itself: what a gather brings is parted behind it, what
other messages take is put together before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from partita.compiler.cost.boxing import copies_seconds
from partita.compiler.cost.step import StepKind
from partita.compiler.cost.unlike_ranks import steps_of
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.program import Phase
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.buckets import bucket_sent, is_shared
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.turns import Half
from partita.compiler.plan.uses import times_in_step, type_of
from partita.compiler.simulate.item import Item


def boxing_items(
    document: Document,
    boxings: Sequence[Boxing],
    hardware: Hardware,
    half: Half = Half.BOTH,
) -> list[Item]:
    """Return the steps of a boxing, or of those of a bucket, or half of them.

    Those without bytes are copies of the rank's own.
    """
    whole = list(_items(document, boxings, hardware))
    if half is Half.BOTH:
        return whole
    first, second = halves_of(whole, LastMessages(document, hardware)(boxings))
    return first if half is Half.FIRST else second


def _items(
    document: Document, boxings: Sequence[Boxing], hardware: Hardware
) -> Iterator[Item]:
    first, is_bucket = boxings[0], len(boxings) > 1
    times = times_in_step(first, document.microbatches)
    phase = _phase(document, first)
    for boxing in boxings:
        for step in boxing.lowering:
            if is_bucket and is_shared(step):
                continue  # one for all, below
            yield Item(
                first.key,
                f"{step}: {boxing.key}",
                phase,
                step.seconds / times,
                step.axis if step.bytes else None,
                step.bytes / times,
            )
    if is_bucket:
        name = f"{first.key} and {len(boxings) - 1} more"
        for sent in bucket_sent(document, boxings):
            seconds, num_bytes = sent.seconds(hardware), sent.bytes(hardware)
            what = f"{sent.kind} {sent.axis}: {name}"
            figures = seconds / times, sent.axis, num_bytes / times
            yield Item(first.key, what, phase, *figures)


def _phase(document: Document, boxing: Boxing) -> Phase:
    """Return when a boxing is made: before the first who wants it."""
    first = document.nodes.get(boxing.consumers[0])
    return (first or document.nodes[boxing.producer]).phase


class LastMessages:
    """The seconds of last messages by themselves; of boxings lowered alike, once."""

    def __init__(self, document: Document, hardware: Hardware) -> None:
        self.document = document
        self.hardware = hardware
        self._known: dict[tuple[TensorType, Placement, int, int], float] = {}

    def __call__(self, boxings: Sequence[Boxing]) -> float:
        """Return those of a boxing, or of a bucket's, without copies around it."""
        document, boxing = self.document, boxings[0]
        times = times_in_step(boxing, document.microbatches)
        if len(boxings) > 1:
            return bucket_sent(document, boxings)[-1].message_s(self.hardware) / times
        type_ = type_of(document, boxing.ref)
        alike = type_, boxing.source, id(boxing.lowering), times
        if alike not in self._known:
            pairs = zip(boxing.lowering, steps_of(document, boxing), strict=True)
            stated, step = [pair for pair in pairs if pair[0].bytes][-1]
            copies_s = copies_seconds(type_, step, document.mesh, self.hardware)
            self._known[alike] = max(0.0, stated.seconds / times - copies_s)
        return self._known[alike]


def halves_of(whole: Sequence[Item], message_s: float) -> tuple[list[Item], list[Item]]:
    """Return what is done up to the last message, and what waits for that.

    Args:
        whole: what ``boxing_items`` of some boxings gives.
        message_s: the seconds of its last message by itself.
    """
    last = max(i for i, item in enumerate(whole) if item.axis is not None)
    message = whole[last]
    copies_s = message.seconds - message_s
    copies = Item(message.key, f"copies of {message.name}", message.phase, copies_s)
    before, behind = [*whole[:last]], [*whole[last + 1 :]]
    if message.name.startswith(f"{StepKind.ALL_GATHER} "):
        behind.insert(0, copies)
    elif copies_s > 0:
        before.append(copies)
    if not behind:
        name = f"wait for {message.name}"
        behind.append(Item(message.key, name, message.phase, 0.0))
    behind[0] = replace(behind[0], is_behind=True)
    return [*before, replace(message, seconds=message_s, is_beside=True)], behind
