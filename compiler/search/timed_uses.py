"""Who uses the tensors of a problem, when, and in which placement, in a program."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from partita.compiler.capture.torch_private import may_share_memory
from partita.compiler.cost.lifetimes import held_bytes
from partita.compiler.ir.program import OutputKind, Phase, info
from partita.compiler.ir.sbp import Placement
from partita.compiler.search.linear import NO, Linear
from partita.compiler.search.placement_program import (
    Pair,
    PlacementProgram,
    Tensor,
    Use,
)
from partita.compiler.search.pose import Posed

Copy = tuple[int, int, Placement]
"""A tensor boxed to a placement: by node and result."""

Maker = int | Copy
"""What may be made again: the results of a node, or a copy."""


@dataclass(frozen=True, slots=True)
class Call:
    """A node of the problem that runs: when, in which half, and whether as a view."""

    time: int
    is_forward: bool
    is_view: bool


class TimedUses:
    """The uses of a posed problem's tensors, and the program they are written in.

    Args:
        posed: the problem.
        placed: the program of its placements.
    """

    def __init__(self, posed: Posed, placed: PlacementProgram) -> None:
        self.posed = posed
        self.placed = placed
        self.program = placed.program
        self.nodes = posed.problem.nodes
        self.mesh = posed.problem.mesh
        self.calls: dict[int, Call] = {}
        for index, item in enumerate(posed.items):
            if isinstance(item, fx.Node) and item.op == "call_function":
                is_forward = info(item).phase is Phase.FORWARD
                is_view = bool(self.nodes[index].operands)
                is_view &= may_share_memory(item.target)
                call = Call(len(self.calls), is_forward, is_view)
                self.calls[index] = call
        self.num_calls = len(self.calls)
        forward = [c.time for c in self.calls.values() if c.is_forward]
        self.num_forward = max(forward, default=-1) + 1

    def values(self, node: int) -> list[Tensor]:
        """Return the tensors that a node makes."""
        types = self.nodes[node].result_types
        return [(node, at) for at, type_ in enumerate(types) if type_ is not None]

    def uses(self, value: Tensor) -> list[tuple[Use, Pair]]:
        """Return the uses of a tensor, with how each takes it."""
        found = self.placed.uses.get(value, [])
        return [(use, self.placed.pair(value, use)) for use in found]

    def wants(self, value: Tensor) -> list[Placement]:
        """Return the placements that a tensor may be boxed to."""
        pairs = (pair for _, pair in self.uses(value))
        return list(dict.fromkeys(want for pair in pairs for want in pair.boxed))

    def takers(self, value: Tensor, want: Placement) -> list[tuple[Use, Linear]]:
        """Return the uses of a tensor, with whether each takes it boxed so."""
        pairs = self.uses(value)
        return [(use, pair.boxed.get(want, NO)) for use, pair in pairs]

    def is_view(self, use: Use) -> bool:
        """Whether a use goes on through the results of a view."""
        call = self.calls.get(use[0])
        return call is not None and call.is_view and use[1] == 0

    def time(self, value: Tensor) -> int:
        """Return when a tensor is made; what enters is there before the first call."""
        call = self.calls.get(value[0])
        return -1 if call is None else call.time

    def _is_gradient(self, node: int) -> bool:
        item = self.posed.items[node]
        return not isinstance(item, fx.Node) and item.kind is OutputKind.GRADIENT

    def num_bytes(self, value: Tensor, placement: Placement) -> int:
        """Return the bytes of a tensor on the rank that holds most of it."""
        type_ = self.nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        return held_bytes(type_, placement, self.mesh)

    def is_forward(self, node: int) -> bool:
        """Whether a use by this node is one of the forward."""
        call = self.calls.get(node)
        return not self._is_gradient(node) if call is None else call.is_forward
