"""What a rank holds at the least if a node chooses so, whatever all others choose.

While a call runs, its operands are there as it wants them, its results and what its
kernel takes for itself, beside what enters, as little of that as can be. Who needs more
than a limit by itself belongs to nothing that keeps to it. Without such choices bounds
are closer, and memory with a price at a few moments alone does not lead to choices that
take far more at others.

Operands that are views of one tensor may lie in one memory, and count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

import numpy as np

from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.call_times import CallTimes, Tensor
from partita.compiler.search.fold import Fold
from partita.compiler.search.model import Bools, Floats
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice, made_placement
from partita.compiler.search.state import States
from partita.compiler.search.workspaces import Workspaces


class OwnBytes:
    """Counts them for the choices of a posed problem.

    Args:
        posed: the problem.
        fold: its classes of nodes that choose alike.
        optimizer: what holds moments of every parameter.
    """

    def __init__(self, posed: Posed, fold: Fold, optimizer: str) -> None:
        self._posed = posed
        self._fold = fold
        self._nodes = posed.problem.nodes
        self._times = posed.known(CallTimes)
        self._states = States(posed, optimizer)
        self._workspaces = Workspaces(posed)

    @cached_property
    def state_bytes(self) -> int:
        """The least that what stays and what is fed takes of a rank: a bound."""
        return sum(self._least_state.values())

    @cached_property
    def of_classes(self) -> tuple[Floats, ...]:
        """Per class, what a rank holds at the least under each choice."""
        return tuple([self._of_node(members[0]) for members in self._fold.members])

    @cached_property
    def least(self) -> float:
        """What no assignment holds less than."""
        return max(float(own.min()) for own in self.of_classes)

    def within(self, limit: float, known: Sequence[int]) -> tuple[Bools, ...]:
        """Return, per class, the choices that may keep to a limit.

        Args:
            limit: where nothing does, those are returned that may hold the least.
            known: an assignment that is left in.
        """
        limit = max(limit, self.least)
        found = tuple([own <= limit for own in self.of_classes])
        for own, members in zip(found, self._fold.members, strict=True):
            own[known[members[0]]] = True
        return found

    @cached_property
    def _least_state(self) -> dict[int, int]:
        return {
            index: min(
                self._states.of(index, choice).num_bytes
                for choice in self._nodes[index].choices
            )
            for index in self._states.entering | self._states.fed
        }

    def _of_node(self, index: int) -> Floats:
        choices = self._nodes[index].choices
        if index in self._least_state:
            others = self.state_bytes - self._least_state[index]
            own = [self._states.of(index, choice).num_bytes for choice in choices]
            return np.array([others + num_bytes for num_bytes in own], dtype=float)
        own = [self._while_it_runs(index, choice) for choice in choices]
        return np.array([self.state_bytes + n for n in own], dtype=float)

    def _while_it_runs(self, index: int, choice: Choice) -> int:
        call = self._times.calls.get(index)
        if call is None:  # what leaves may be brought together later, part by part
            return 0
        there: dict[Tensor, int] = {}
        node, signature = self._nodes[index], choice.signature
        for value, want in zip(node.operands, signature.operands, strict=True):
            root = self._root(value)
            if root is not None:
                num_bytes = self._bytes(value, want)
                num_bytes -= self._least_state.get(root[0], 0)
                there[root] = max(there.get(root, 0), num_bytes)
        if not call.is_view:
            for value in self._times.values(index):
                there[value] = self._bytes(value, made_placement(choice, value[1]))
        return sum(there.values()) + self._workspaces.of(index, choice)

    def _root(self, value: Tensor) -> Tensor | None:
        """Return what a tensor is a view of; ``None`` where that may be smaller."""
        while value[0] in self._times.calls and self._times.calls[value[0]].is_view:
            of = self._nodes[value[0]].operands[0]
            if prod(self._type(value).shape) > prod(self._type(of).shape):
                return None
            value = of
        return value

    def _bytes(self, value: Tensor, placement: Placement) -> int:
        return held_bytes(self._type(value), placement, self._posed.problem.mesh)

    def _type(self, value: Tensor) -> TensorType:
        type_ = self._nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        return type_
