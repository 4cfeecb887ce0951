"""How many bytes a rank puts on the wire in a step."""

from __future__ import annotations

from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.buckets import sending, steps_alone
from partita.compiler.plan.document import Document
from partita.compiler.plan.stages import stage_documents


def sent_bytes(document: Document) -> int:
    """Return what the ranks of the place that sends most put on the wire, each.

    These are the boxings of all stages of the place, and what they hand others.
    """
    rank_of = document.schedule.rank_of
    sent, hardware = [0] * (max(rank_of) + 1), load_hardware(document.hardware)
    for stage, part in enumerate(stage_documents(document)):
        alone = sum(step.bytes for _, step in steps_alone(part))
        together = sum(one.bytes(hardware) for one in sending(part))
        sent[rank_of[stage]] += alone + together
    for transfer in document.transfers:
        times = document.microbatches if transfer.kind.is_of_microbatch else 1
        sent[rank_of[transfer.sender]] += transfer.bytes * times
    return max(sent)
