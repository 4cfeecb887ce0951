"""The decisions of a plan by what they are of, each as a hash: all ranks have the same.

What is predicted of them and how they were found is left out: ranks that search for
themselves need not take equally long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from partita.compiler.plan.document import Document


def digests(document: Document) -> dict[str, str]:
    """Return a hash of each kind of decisions, by what the plan calls them."""
    stages = [(str(stage.mesh), stage.ranks) for stage in document.stages]
    members = [stage.nodes for stage in document.stages]
    placed = (f"{key} {node.signature}" for key, node in document.nodes.items())
    stored = (f"{key} {p.placements}" for key, p in document.parameters.items())
    boxed = (
        f"{boxing.key} {boxing.source} {[(s.axis, s.after) for s in boxing.lowering]}"
        for boxing in document.boxings
    )
    sent = (f"{each.name} {each.sender} {each.receiver}" for each in document.transfers)
    found: Mapping[str, Iterable[object]] = {
        "mesh": (document.mesh, *stages),
        "stages": members,
        "schedule": (document.schedule, document.microbatches),
        "transfers": sent,
        "nodes": placed,
        "parameters": stored,
        "boxings": boxed,
        "outputs": document.outputs,
        "recompute": document.recompute,
        "fusion": document.fusion,
        "joined": document.joined,
        "buckets": document.buckets,
        "ahead": document.ahead.items(),
        "late": document.late.items(),
        "order": document.order,
    }
    return {name: _hash(decided) for name, decided in found.items()}


def _hash(decided: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for each in decided:
        digest.update(f"{each}\n".encode())
    return digest.hexdigest()
