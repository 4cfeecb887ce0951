"""Which sums of a plan pass while its ranks go on computing.

Nothing in the program waits for a sum that only leaves it, a gradient's above all, so
its wait stands at the end (passes/sink_waits.py). What stands between is computed while
the message passes, as far as the machine can do both (``Hardware.overlap``).
"""

from __future__ import annotations

from collections.abc import Iterable

from partita.compiler.cost.step import StepKind
from partita.compiler.plan.document import Document, Node
from partita.compiler.plan.uses import boxings_by_use, find_uses


def sums_beside(document: Document) -> frozenset[str]:
    """Return the keys of boxings that end in a sum which nothing waits for.

    ``document`` is a plan of one stage.
    """
    last = _views_that_leave(document)

    def leaves(users: Iterable[str]) -> bool:
        return all(user not in document.nodes or user in last for user in users)

    return frozenset(
        boxing.key
        for boxing in document.boxings
        if boxing.lowering
        and boxing.lowering[-1].kind == StepKind.ALL_REDUCE
        and leaves(boxing.consumers)
    )


def _views_that_leave(document: Document) -> frozenset[str]:
    """Return the views of one tensor that leave as they are, or views of them do."""
    boxed = boxings_by_use(document)
    users: dict[str, list[str | None]] = {}
    for use in find_uses(document):
        is_boxed = use.asks in boxed
        users.setdefault(use.ref.key, []).append(None if is_boxed else use.consumer)
    found: set[str] = set()
    for key in reversed(document.order):
        if _is_view(document.nodes[key]) and all(
            user is not None and (user not in document.nodes or user in found)
            for user in users.get(key, ())
        ):
            found.add(key)
    return frozenset(found)


def _is_view(node: Node) -> bool:
    return node.role is None and not node.seconds and len(node.operands) == 1
