"""What of a step's messages passes while its ranks compute, and so takes no time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from partita.compiler.plan.document import Document, Predicted
from partita.compiler.simulate.joined_calls import JoinedCalls
from partita.compiler.simulate.turn_items import TurnItems


def with_hidden(
    plain: Predicted, document: Document, items: TurnItems | None = None
) -> Predicted:
    """Return the figures of a step without what passes beside computing.

    Args:
        plain: those of everything that a rank does, one after another.
        document: the plan of one stage that they are of.
        items: known of a plan that differs in its turns and buckets alone.
    """
    items = items or TurnItems(document)
    if not items.hardware.overlap:
        return plain
    hidden_s = JoinedCalls.of(document, items).hidden_s(document)
    return without(plain, hidden_s, document.microbatches)


def without(plain: Predicted, hidden_s: Mapping[str, float], times: int) -> Predicted:
    """Return the figures of a step without what is hidden, so many times, by axis."""
    hidden = {
        f"communication {axis}": times * s for axis, s in hidden_s.items() if s > 0
    }
    return replace(_less(plain, hidden, 1), hidden_by_part=hidden)


def one_by_one(found: Predicted) -> Predicted:
    """Return the figures that ``with_hidden`` was given."""
    return replace(_less(found, found.hidden_by_part, -1), hidden_by_part={})


def _less(found: Predicted, hidden: Mapping[str, float], sign: int) -> Predicted:
    parts = {
        part: seconds - sign * hidden.get(part, 0.0)
        for part, seconds in found.seconds_by_part.items()
    }
    seconds = found.seconds - sign * sum(hidden.values())
    return replace(found, seconds=seconds, seconds_by_part=parts)
