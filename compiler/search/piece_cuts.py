"""In which pieces inputs are to be cut, so that what is made of them is in pieces.

A model that is run on pairs, one half of the batch beside the other, cuts what it makes
in halves: ``scores[:n] - scores[n:]``. Where a microbatch has a part of either half of
what enters, it has just those of the scores, and the same holds of whatever else enters
between. From the cut on, it is followed back to the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from partita.compiler.ir.program import Value, operands
from partita.compiler.ir.sbp import Sharding, Split
from partita.compiler.ir.signature import AxisSignature


@dataclass(frozen=True, slots=True)
class Cutting:
    """Follows pieces back to inputs.

    Attributes:
        options: what a node may do where its result of a number is wanted so.
        is_had: whether a tensor is as it is wanted, or can be had so.
        may_cut: whether a placeholder can enter in pieces.
    """

    options: Callable[[fx.Node, Sharding, int], tuple[AxisSignature, ...]]
    is_had: Callable[[Value, Sharding], bool]
    may_cut: Callable[[fx.Node, Split], bool]

    def cuts_for(
        self, node: fx.Node, option: AxisSignature
    ) -> dict[fx.Node, Split] | None:
        """Return how inputs are to be cut for ``node`` to do as ``option`` says.

        ``None`` where that cannot be had; nothing where it takes no cut.
        """
        cuts: dict[fx.Node, Split] = {}
        seen = set[tuple[Value, Sharding]]()
        open_wants = self._lacking(node, option)
        while open_wants:
            value, want = found = open_wants.pop()
            if found in seen:
                continue
            seen.add(found)
            if not isinstance(want, Split):
                return None  # no cut of inputs joins what is in parts
            if value.node.op == "placeholder":
                if cuts.setdefault(value.node, want) != want:
                    return None
                if not self.may_cut(value.node, want):
                    return None
                continue
            ways = [
                self._lacking(value.node, way)
                for way in self.options(value.node, want, value.index)
                if way.results[value.index] == want
            ]
            if not ways:
                return None
            open_wants += min(ways, key=len)
        return cuts

    def _lacking(
        self, node: fx.Node, option: AxisSignature
    ) -> list[tuple[Value, Sharding]]:
        """Return the operands that are otherwise than an option wants them."""
        pairs = zip(operands(node), option.operands, strict=True)
        return [pair for pair in pairs if not self.is_had(*pair)]
