"""What a node asks of its operands and gives as its results, as placements.

An ``AxisSignature`` is the choice on one mesh axis (a sharding per tensor); a
``Signature`` is the choice on the whole mesh (a placement per tensor). Operands are
the tensors among a call's arguments in the order of ``(args, kwargs)``; results
are the tensors it returns, ``None`` where it returns none (a gradient not asked for).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from partita.compiler.ir.sbp import Broadcast, Placement, Sharding


@dataclass(frozen=True, slots=True)
class AxisSignature:
    """One sharding per operand and per result, for a single mesh axis."""

    operands: tuple[Sharding, ...]
    results: tuple[Sharding | None, ...]

    def __str__(self) -> str:
        left = ", ".join(str(sharding) for sharding in self.operands)
        right = ", ".join(str(sharding) for sharding in self.results)
        return f"{left} -> {right}"

    @property
    def is_broadcast(self) -> bool:
        """Whether every tensor is ``B``: each rank of the axis does all the work."""
        tensors = (*self.operands, *self.results)
        return all(s is None or isinstance(s, Broadcast) for s in tensors)


@dataclass(frozen=True, slots=True)
class Signature:
    """One placement per operand and per result."""

    operands: tuple[Placement, ...]
    results: tuple[Placement | None, ...]

    def __str__(self) -> str:
        left = ", ".join(str(placement) for placement in self.operands)
        right = ", ".join(str(placement) for placement in self.results)
        return f"{left} -> {right}"


def compose(axes: tuple[AxisSignature, ...]) -> Signature:
    """Join the choices on each axis of a mesh into one signature.

    >>> from partita.compiler.ir.sbp import Split
    >>> dp = AxisSignature((Split(0), Broadcast()), (Split(0),))
    >>> tp = AxisSignature((Broadcast(), Split(1)), (Split(1),))
    >>> str(compose((dp, tp)))
    '(S(0), B), (B, S(1)) -> (S(0), S(1))'
    """
    operands = zip(*(axis.operands for axis in axes), strict=True)
    results = zip(*(axis.results for axis in axes), strict=True)
    return Signature(
        tuple([_joined(parts) for parts in operands]),
        tuple([None if parts[0] is None else _joined(parts) for parts in results]),
    )


@lru_cache(maxsize=1 << 16)
def _joined(parts: tuple[Sharding, ...]) -> Placement:
    """Return the one placement of these: equal ones are told by being the same."""
    return Placement(parts)
