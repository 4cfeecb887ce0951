"""Who uses the tensors of a problem, when, and in which placement, in a program."""

from __future__ import annotations

from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.ir.sbp import Placement
from partita.compiler.search.call_times import CallTimes, Tensor, Use
from partita.compiler.search.linear import NO, YES, Linear
from partita.compiler.search.placement_program import Pair, PlacementProgram
from partita.compiler.search.pose import Posed

Copy = tuple[int, int, Placement]
"""A tensor boxed to a placement: by node and result."""

Maker = int | Copy
"""What may be made again: the results of a node, or a copy."""


class TimedUses(CallTimes):
    """The uses of a posed problem's tensors, and the program they are written in.

    Args:
        posed: the problem.
        placed: the program of its placements.
    """

    def __init__(self, posed: Posed, placed: PlacementProgram) -> None:
        super().__init__(posed)
        self.placed = placed
        self.program = placed.program

    def uses(self, value: Tensor) -> list[tuple[Use, Pair]]:
        """Return the uses of a tensor, with how each takes it."""
        found = self.placed.uses.get(value, [])
        pairs = [(use, self.placed.pair(value, use)) for use in found]
        return [(use, self._while_held(use[0], pair)) for use, pair in pairs]

    def _while_held(self, user: int, pair: Pair) -> Pair:
        if self.is_sum(user):  # it is boxed behind the microbatches, in place of it
            return Pair(YES, {}, {})
        return pair._replace(as_made=NO) if user in self.posed.let_go else pair

    def wants(self, value: Tensor) -> list[Placement]:
        """Return the placements that a tensor may be boxed to."""
        pairs = (pair for _, pair in self.uses(value))
        return list(dict.fromkeys(want for pair in pairs for want in pair.boxed))

    def takers(self, value: Tensor, want: Placement) -> list[tuple[Use, Linear]]:
        """Return the uses of a tensor, with whether each takes it boxed so."""
        pairs = self.uses(value)
        return [(use, pair.boxed.get(want, NO)) for use, pair in pairs]

    def num_bytes(self, value: Tensor, placement: Placement) -> int:
        """Return the bytes of a tensor on the rank that holds most of it."""
        type_ = self.nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        return held_bytes(type_, placement, self.posed.problem.mesh)
