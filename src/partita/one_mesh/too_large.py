"""What a search raises where no plan keeps to the memory limit."""

from __future__ import annotations

from partita.compiler.errors import NoSolution
from partita.compiler.plan.units import format_bytes


def too_large(limit: int, least_bytes: int, state_bytes: int) -> NoSolution:
    """Return the refusal of a limit.

    Args:
        limit: of a rank's bytes.
        least_bytes: of the plans that were found.
        state_bytes: what stays from step to step and is fed takes no less.
    """
    told = (
        f"memory: the limit is {format_bytes(limit)} on a rank, and no plan was "
        f"found that needs less than {format_bytes(least_bytes)}"
    )
    if state_bytes > limit:
        told += (
            "; parameters, optimizer states and inputs take "
            f"{format_bytes(state_bytes)} at the least"
        )
    return NoSolution(told, least_bytes, state_bytes)
