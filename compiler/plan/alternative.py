"""What a plan keeps of the signatures that were not taken."""

from __future__ import annotations

from dataclasses import dataclass

from partita.compiler.ir.signature import Signature
from partita.compiler.search.held import Held


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another signature of a node and what the step would gain (< 0) or lose by it.

    All else stays as it is, but for the gradient of a parameter, which goes with it.
    A parameter that is trained may have several ways to be held under one signature.

    Attributes:
        signature: the placements of operands and results.
        seconds: of the whole step.
        compute_s: the part of it that is compute, or an optimizer's update; the rest
            is boxings.
        bytes: what one rank puts on the wire for boxings.
        held_bytes: what the largest rank holds of the node's results, of a parameter
            that is trained with its optimizer's state.
        held: how such a parameter is held apart from its storage.
    """

    signature: Signature
    seconds: float
    compute_s: float = 0.0
    bytes: int = 0
    held_bytes: int = 0
    held: Held | None = None
