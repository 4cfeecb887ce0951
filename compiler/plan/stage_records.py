"""What a plan says of pipeline stages: who they are, when they work, what they send."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement


@dataclass(frozen=True, slots=True)
class Stage:
    """A pipeline stage: its mesh, its ranks in the mesh's order, its node keys."""

    mesh: Mesh
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The pipeline schedule; ``sequential`` where there is one stage.

    Attributes:
        name: of the kind of schedule.
        rank_of: by stage, which row is that of its ranks.
        rows: the actions, in order, that ranks do, as compiler/schedules prints them.
        most_live: by stage, of how many microbatches it holds what the forward saved.
    """

    name: str = "sequential"
    rank_of: tuple[int, ...] = (0,)
    rows: tuple[str, ...] = ()
    most_live: tuple[int, ...] = (1,)


SEQUENTIAL = Schedule()
"""That of one stage."""


class TransferKind(StrEnum):
    """What one stage hands another: in every microbatch, or once in a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    STATE = "state"
    GRADIENT = "gradient"

    @property
    def is_of_microbatch(self) -> bool:
        """Whether every microbatch has one."""
        return self in (TransferKind.FORWARD, TransferKind.BACKWARD)


@dataclass(frozen=True, slots=True)
class Transfer:
    """A tensor that goes from one stage to another.

    ``name`` is the printed reference of what is made, else the parameter or buffer
    that is shared. ``bytes`` are those that the rank with the most to do sends or
    receives, each time, and ``seconds`` what that takes.
    """

    kind: TransferKind
    name: str
    sender: int
    receiver: int
    source: Placement = field(metadata={"json": "from"})
    target: Placement = field(metadata={"json": "to"})
    bytes: int = 0
    seconds: float = 0.0
