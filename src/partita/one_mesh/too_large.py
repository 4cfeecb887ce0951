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
    sizes = limit, least_bytes, state_bytes
    limited, least, state = map(format_bytes, sizes)
    if limited in (least, state):  # which are told apart by their last digits alone
        limited, least, state = (f"{size} B" for size in sizes)
    told = (
        f"memory: the limit is {limited} on a rank, and no plan was found that needs "
        f"less than {least}"
    )
    if state_bytes > limit:
        told += f"; parameters, optimizer states and inputs take {state} at the least"
    return NoSolution(told, least_bytes, state_bytes)
