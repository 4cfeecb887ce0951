"""What a search tried on its way to a plan."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tried:
    """One way to run the model that was compared with the others.

    Attributes:
        way: mesh or stages, schedule, microbatches, in words.
        seconds: predicted, of the best plan found; ``None`` where none was found.
    """

    way: str
    seconds: float | None
