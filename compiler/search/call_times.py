"""When the nodes of a posed problem run, in which half of the step, what they make."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import fx

from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.ir.program import OutputKind, Phase, info
from partita.compiler.search.lies import Lies
from partita.compiler.search.moments import Moments
from partita.compiler.search.pose import Posed

Tensor = tuple[int, int]  # a node and which of its results
Use = tuple[int, int]  # a node and which of its operands


@dataclass(frozen=True, slots=True)
class Call:
    """A node of the problem that runs: when, in which half, and whether as a view.

    ``time`` is the moment of it, ``number`` counts the calls.
    """

    number: int

    time: int
    is_forward: bool
    is_view: bool


class CallTimes:
    """The calls among a posed problem's nodes.

    Args:
        posed: the problem.

    Attributes:
        calls: those that run, by their position.
        moments: the numbers of moments, which all times are.
        forward_end: when the forward ends.
        leaving: when what leaves is handed over.
        update: when the optimizer steps.
        places: of what leaves, the place at which it begins to be boxed.
        fed_until: the place at which what was fed is let go of.
        completed: of what microbatches add up to, the place at which that begins to be
            boxed, one sum after another before what leaves is handed over.
        microbatches: how many there are.
    """

    def __init__(self, posed: Posed) -> None:
        self.posed = posed
        self.nodes = posed.problem.nodes
        self.microbatches = posed.candidates.program.in_time.count
        self.lies = posed.known(Lies)
        items = (
            (index, item)
            for index, item in enumerate(posed.items)
            if isinstance(item, fx.Node) and item.op == "call_function"
        )
        calls = dict(items)
        forward = [info(item).phase is Phase.FORWARD for item in calls.values()]
        last = max((at for at, is_early in enumerate(forward) if is_early), default=-1)
        self.calls: dict[int, Call] = {}
        numbers = {index: number for number, index in enumerate(calls)}
        operands = (len(self.nodes[index].operands) for index in calls)
        behind = self._leaving(numbers)
        most = max((at for _, at in behind.values()), default=-1) + 1
        sums = [
            index
            for index, item in enumerate(posed.items)
            if not isinstance(item, fx.Node) and self.is_sum(index)
        ]
        # The first moment behind all calls is that at which the last microbatch ends.
        before = 2 * max(max(operands, default=0), len(sums) + 1 if sums else 0)
        self.moments = Moments(last + 1, before, 2 * most)
        self.places = {
            index: self.moments.boxed_behind(*own) for index, own in behind.items()
        }
        for number, (index, item) in enumerate(calls.items()):
            is_view = bool(self.nodes[index].operands)
            is_view &= may_share_memory(item.target)
            time = self.moments.of_call(number)
            self.calls[index] = Call(number, time, forward[number], is_view)
        self.forward_end = self.moments.of_call(last)
        self.leaving = self.moments.of_call(len(self.calls))
        self.update = self.moments.of_call(len(self.calls) + 1)
        boxed_before = self.moments.boxed_before
        self.completed = {
            index: boxed_before(len(calls), number)
            for number, index in enumerate(sums, start=1)
        }
        leaving_at = self.moments.place_of(len(calls))
        self.fed_until = boxed_before(len(calls), 0) if sums else leaving_at

    def _leaving(self, numbers: dict[int, int]) -> dict[int, tuple[int, int]]:
        """Return behind which call what leaves is boxed, and as which of it.

        They stand as ``emitted_units`` has them; -1 is before the first call.
        """
        behind: dict[int, list[tuple[int, int]]] = {}
        for index, item in enumerate(self.posed.items):
            if not isinstance(item, fx.Node):
                ((source, result),) = self.nodes[index].operands
                call = numbers.get(source, -1)
                behind.setdefault(call, []).append((result, -index))
        return {
            -index: (call, at)
            for call, own in behind.items()
            for at, (_, index) in enumerate(sorted(own))
        }

    def boxed_at(self, use: Use) -> int:
        """Return the moment at which an operand begins to be boxed for its user.

        A moment later it is there as it is wanted.
        """
        call = self.calls.get(use[0])
        if call is None:
            return self.moments.of_place(self.places[use[0]])
        return self.moments.of_place(self.moments.boxed_before(call.number, use[1]))

    def values(self, node: int) -> list[Tensor]:
        """Return the tensors that a node makes."""
        types = self.nodes[node].result_types
        return [(node, at) for at, type_ in enumerate(types) if type_ is not None]

    def time(self, value: Tensor) -> int:
        """Return when a tensor is made; what enters is there before the first call."""
        call = self.calls.get(value[0])
        return self.moments.of_call(-1) if call is None else call.time

    def is_early(self, node: int) -> bool:
        """Whether what a node makes is there in the forward."""
        call = self.calls.get(node)
        return call is None or call.is_forward

    def is_forward(self, node: int) -> bool:
        """Whether a use by this node is one of the forward."""
        call = self.calls.get(node)
        return not self._is_gradient(node) if call is None else call.is_forward

    def end(self, node: int) -> int:
        """Return until when what leaves as this node is held: see ``holdings.py``.

        What microbatches make of a sum is added to it at once.
        """
        item = self.posed.items[node]
        assert not isinstance(item, fx.Node)
        if self.is_sum(node):
            return self.time(self.nodes[node].operands[0])
        return self.update if item.kind.is_kept else self.leaving

    def is_sum(self, node: int) -> bool:
        """Whether what leaves as this node is what microbatches add up to."""
        return self.nodes[node].times < self.microbatches

    @cached_property
    def sums(self) -> dict[Tensor, list[int]]:
        """What microbatches add up to: by tensor, as which nodes the sum leaves."""
        found: dict[Tensor, list[int]] = {}
        for index in self.completed:
            found.setdefault(self.nodes[index].operands[0], []).append(index)
        return found

    def _is_gradient(self, node: int) -> bool:
        item = self.posed.items[node]
        return not isinstance(item, fx.Node) and item.kind is OutputKind.GRADIENT

    def is_view(self, use: Use) -> bool:
        """Whether a use goes on through the results of a view."""
        call = self.calls.get(use[0])
        return call is not None and call.is_view and use[1] == 0
