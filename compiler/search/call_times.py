"""When the nodes of a posed problem run, in which half of the step, what they make."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.ir.program import OutputKind, Phase, info
from partita.compiler.search.pose import Posed

Tensor = tuple[int, int]  # a node and which of its results
Use = tuple[int, int]  # a node and which of its operands


@dataclass(frozen=True, slots=True)
class Call:
    """A node of the problem that runs: when, in which half, and whether as a view."""

    time: int
    is_forward: bool
    is_view: bool


class CallTimes:
    """The calls among a posed problem's nodes.

    Args:
        posed: the problem.
    """

    def __init__(self, posed: Posed) -> None:
        self.posed = posed
        self.nodes = posed.problem.nodes
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

    def time(self, value: Tensor) -> int:
        """Return when a tensor is made; what enters is there before the first call."""
        call = self.calls.get(value[0])
        return -1 if call is None else call.time

    def is_forward(self, node: int) -> bool:
        """Whether a use by this node is one of the forward."""
        call = self.calls.get(node)
        return not self._is_gradient(node) if call is None else call.is_forward

    def end(self, node: int) -> int:
        """Return until when what leaves as this node is held: see ``holdings.py``."""
        item = self.posed.items[node]
        assert not isinstance(item, fx.Node)
        return self.num_calls + item.kind.is_kept

    def _is_gradient(self, node: int) -> bool:
        item = self.posed.items[node]
        return not isinstance(item, fx.Node) and item.kind is OutputKind.GRADIENT

    def is_view(self, use: Use) -> bool:
        """Whether a use goes on through the results of a view."""
        call = self.calls.get(use[0])
        return call is not None and call.is_view and use[1] == 0
