"""Wire bytes and seconds of one collective, by the ring algorithms.

Bandwidth terms: Thakur, Rabenseifner, Gropp, "Optimization of Collective
Communication Operations in MPICH", IJHPCA 19(1), 2005, sections 4.1 to 4.4; the same
factors as the bus bandwidths of nccl-tests (doc/PERFORMANCE.md). An all-reduce is a
reduce-scatter followed by an all-gather, hence twice everything.
"""

from __future__ import annotations

from partita.compiler.hardware.profile import CollectiveCost, CollectiveKind

__all__ = ["CollectiveCost", "CollectiveKind", "num_steps", "seconds", "wire_bytes"]


def wire_bytes(kind: CollectiveKind, payload_bytes: int, size: int) -> int:
    """Return the bytes that each of ``size`` ranks sends, rounded up.

    ``payload_bytes`` is what one rank puts into the functional collective: its shard
    for an all-gather, its whole input for the others.

    >>> wire_bytes(CollectiveKind.ALL_REDUCE, 1024, 4)
    1536
    """
    if kind is CollectiveKind.ALL_GATHER:
        return (size - 1) * payload_bytes
    rounds = 2 if kind is CollectiveKind.ALL_REDUCE else 1
    return -(-rounds * (size - 1) * payload_bytes // size)


def num_steps(kind: CollectiveKind, size: int) -> int:
    """Return the number of message steps that follow one another."""
    return (2 if kind is CollectiveKind.ALL_REDUCE else 1) * (size - 1)


def seconds(
    kind: CollectiveKind, wire_bytes: int, size: int, cost: CollectiveCost
) -> float:
    """Return how long the collective takes when nothing disturbs it."""
    return num_steps(kind, size) * cost.alpha_s + wire_bytes / cost.bytes_per_s
