"""What earlier searches decided for some axes of the mesh, and a later one keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from partita.compiler.errors import BadPlacement
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import AxisSignature, Signature


@dataclass(frozen=True)
class Within:
    """Along ``axes`` every node, by its key, does what its signature here says.

    The optimizers of trained parameters, by the keys of these, have them as decided.
    """

    axes: tuple[int, ...] = ()
    signatures: Mapping[str, Signature] = field(default_factory=dict[str, Signature])
    optimizers: Mapping[str, Placement] = field(default_factory=dict[str, Placement])

    def of_node(self, key: str) -> dict[int, AxisSignature]:
        """Return what a node does on the axes that are decided."""
        signature = self.signatures.get(key)
        if signature is None:
            return {}
        return {axis: _along(signature, axis) for axis in self.axes}

    def of_leaf(self, key: str, offered: Iterable[Placement]) -> list[Placement]:
        """Return what is left to what enters or leaves as ``key`` of what is offered.

        That is what is offered on the other axes, together with what is decided.
        """
        signature = self.signatures.get(key)
        if signature is None:
            return list(offered)
        (known,) = signature.operands or signature.results
        assert known is not None
        return self._together(known, offered)

    def of_optimizer(self, key: str, offered: Iterable[Placement]) -> list[Placement]:
        """Return the same of what is offered to the optimizer of a parameter."""
        known = self.optimizers.get(key)
        return list(offered) if known is None else self._together(known, offered)

    def _together(
        self, known: Placement, offered: Iterable[Placement]
    ) -> list[Placement]:
        found: dict[Placement, None] = {}
        for placement in offered:
            shardings = list(placement.shardings)
            for axis in self.axes:
                shardings[axis] = known.shardings[axis]
            with suppress(BadPlacement):  # axes that cut across each other's segments
                found[Placement(tuple(shardings))] = None
        return list(found)


NOTHING_DECIDED = Within()


def _along(signature: Signature, axis: int) -> AxisSignature:
    return AxisSignature(
        tuple(placement.shardings[axis] for placement in signature.operands),
        tuple(
            None if placement is None else placement.shardings[axis]
            for placement in signature.results
        ),
    )
