"""One thing that a rank does, and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

from partita.compiler.ir.program import Phase


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that a rank does.

    Attributes:
        key: of the node or boxing, of the first node of a group.
        name: what it is, for people.
        phase: when it is done.
        seconds: each time.
        axis: of the mesh, that it communicates on; ``None`` where it computes.
        bytes: that a rank puts on the wire, each time.
        is_beside: whether the rank goes on with the next while the message passes.
        is_behind: whether it waits for the message of its key that passes beside.
    """

    key: str
    name: str
    phase: Phase
    seconds: float
    axis: str | None = None
    bytes: float = 0
    is_beside: bool = False
    is_behind: bool = False
