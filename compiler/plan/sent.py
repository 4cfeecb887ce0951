"""How many bytes a rank puts on the wire in a step."""

from __future__ import annotations

from partita.compiler.plan.document import Document


def sent_bytes(document: Document) -> int:
    """Return what the ranks of the place that sends most put on the wire, each.

    These are the boxings of all stages of the place, and what they hand others.
    """
    rank_of = document.schedule.rank_of
    sent = [0] * (max(rank_of) + 1)
    for boxing in document.boxings:
        sent[rank_of[document.nodes[boxing.producer].stage]] += boxing.bytes
    for transfer in document.transfers:
        times = document.microbatches if transfer.kind.is_of_microbatch else 1
        sent[rank_of[transfer.sender]] += transfer.bytes * times
    return max(sent)
