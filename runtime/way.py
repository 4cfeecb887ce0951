"""A pipeline as every rank of it knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.wires import Wire
from partita.compiler.schedules.schedule import Schedule
from partita.runtime.inventory import Kept


@dataclass(frozen=True)
class Way:
    """The schedule of a pipeline, and what its stages hand each other.

    Attributes:
        schedule: with transfers.
        wires: what stages hand each other.
        home_of: by parameter or buffer, the stage that holds it.
        loss: the type of the loss, ``None`` where there is none.
        loss_rank: a rank that has it.
    """

    schedule: Schedule
    wires: Sequence[Wire]
    home_of: Mapping[str, int]
    loss: TensorType | None
    loss_rank: int

    def homes(self, kept: Sequence[Kept]) -> dict[str, int]:
        """Return the stage that holds each parameter and buffer, by first name.

        What no stage uses is held by the first.
        """
        return {
            entry.name: next(
                (self.home_of[name] for name in entry.names if name in self.home_of), 0
            )
            for entry in kept
        }
