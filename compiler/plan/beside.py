"""Which sums of a plan pass while its ranks go on computing.

Nothing in the program waits for a sum that only leaves it, a gradient's above all, so
its wait stands at the end (passes/sink_waits.py). What stands between is computed while
the message passes, as far as the machine can do both (``Hardware.overlap``).
"""

from __future__ import annotations

from partita.compiler.cost.step import StepKind
from partita.compiler.plan.document import Document, Node


def sums_beside(document: Document) -> frozenset[str]:
    """Return the keys of boxings that end in a sum which nothing waits for.

    ``document`` is a plan of one stage.
    """
    sums = [
        boxing
        for boxing in document.boxings
        if boxing.lowering and boxing.lowering[-1].kind == StepKind.ALL_REDUCE
    ]
    last = _views_that_leave(document) if sums else frozenset[str]()
    return frozenset(
        boxing.key
        for boxing in sums
        if all(user not in document.nodes or user in last for user in boxing.consumers)
    )


def _views_that_leave(document: Document) -> frozenset[str]:
    """Return the views of one tensor that leave as they are, or views of them do."""
    boxed = {boxing.producer for boxing in document.boxings}
    found: set[str] = set()
    waited_for: set[str] = set()  # what others take than such views
    for key in reversed(document.order):
        node = document.nodes[key]
        if _is_view(node) and key not in boxed and key not in waited_for:
            found.add(key)
        else:
            waited_for.update([ref.key for ref in node.operands])
    return frozenset(found)


def _is_view(node: Node) -> bool:
    return node.role is None and not node.seconds and len(node.operands) == 1
