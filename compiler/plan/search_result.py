"""How a search came to a plan: what it tried on its way, what it knows of the end."""

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


@dataclass(frozen=True, slots=True)
class SearchResult:
    """How the decisions were found.

    Attributes:
        solver: what it took.
        status: what is known of the result, as "optimal".
        gap: to a lower bound, relative; ``None`` when unknown.
        seconds: the time of the search.
        tried: ways to run the model that were compared.
        memory_price: the shadow price of memory: seconds of a step that one byte more
            of the limit would save, by the dual of the search; 0 where no limit binds,
            ``None`` when unknown.
    """

    solver: str
    status: str
    gap: float | None
    seconds: float
    tried: tuple[Tried, ...] = ()
    memory_price: float | None = None
