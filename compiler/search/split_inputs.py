"""What follows from pinning an input to a split: the dim stays split on its way.

Whoever pins ``input_ids`` to ``(S(0), B)`` asks for data parallelism on the first
axis, not for a gather right after. So every call that carries the pinned dim, forward
and backward, keeps it split on that axis where it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import fx

from partita.compiler.ir.program import Value, operands
from partita.compiler.ir.sbp import Placement, Split
from partita.compiler.rules.factors import Factors
from partita.compiler.search.problem import Choice


class SplitInputs:
    """Follows pinned dims through the calls of a program, in order."""

    def __init__(self, pinned: Mapping[fx.Node, Placement]) -> None:
        self._dims: dict[Value, dict[int, int]] = {}
        for node, placement in pinned.items():
            self._dims[Value(node, 0)] = {
                axis: sharding.dim
                for axis, sharding in enumerate(placement.shardings)
                if isinstance(sharding, Split) and not sharding.segments
            }

    def restrict(
        self, node: fx.Node, factors: Factors, choices: Iterable[Choice]
    ) -> tuple[Choice, ...]:
        """Return the choices that keep what ``node`` carries of pinned dims split."""
        kept = tuple(choices)
        for position, value in enumerate(operands(node)):
            for axis, dim in self._dims.get(value, {}).items():
                factor = _factor_at(factors, position, dim)
                fitting = tuple(c for c in kept if _splits(c, position, axis, dim))
                if factor is not None and fitting:
                    kept = fitting
                    self._carry(node, factors, factor, axis)
        return kept

    def _carry(self, node: fx.Node, factors: Factors, factor: str, axis: int) -> None:
        for index, parts in enumerate(factors.results):
            for part in parts or ():
                if part.factor == factor and part.outer == 1:
                    self._dims.setdefault(Value(node, index), {})[axis] = part.dim


def _factor_at(factors: Factors, position: int, dim: int) -> str | None:
    """Return the factor that is the outermost of an operand's dim, if any is."""
    for part in factors.operands[position]:
        if part.dim == dim and part.outer == 1 and part.factor in factors.sizes:
            return part.factor
    return None


def _splits(choice: Choice, position: int, axis: int, dim: int) -> bool:
    sharding = choice.signature.operands[position].shardings[axis]
    return sharding == Split(dim)
