"""What a rank holds at the least while it boxes a tensor, whatever all else does.

A copy is there when it is made, with what its boxing takes for itself, beside what
enters, as little of that as can be. What needs more than a memory limit by itself
belongs to nothing that keeps to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.boxed import Boxings
from partita.compiler.search.call_times import Tensor
from partita.compiler.search.lies import Lies
from partita.compiler.search.model import Floats
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import (
    Prices,
    Problem,
    made_placement,
    price_table,
)

Boxing = tuple[TensorType, Placement, Placement]
"""Of which tensor, as it is made, as it is wanted."""

_MOST_TIMES = 2.5  # its bytes, what boxings of a tensor take on two axes, at most


class OwnBoxings:
    """Counts them for the boxings of a posed problem, beside what stays and is fed.

    Args:
        posed: the problem.
    """

    def __init__(self, posed: Posed) -> None:
        self._posed = posed
        self._lies = posed.known(Lies)
        self._boxings = posed.known(Boxings)
        self._known: dict[object, int] = {}
        self._tables: dict[object, Floats] = {}

    def bytes(self, type: TensorType, made: Placement, want: Placement) -> int:
        """Return what is held at the least while a tensor is boxed."""
        key = _plain(type), made, want
        if key not in self._known:
            copy = held_bytes(type, want, self._posed.problem.mesh)
            taken: list[int] = []
            for value in self._values[_plain(type)]:
                boxed = self._boxings.of(value, made, want)
                taken.append(max(boxed.first_bytes, copy + boxed.rest_bytes))
            self._known[key] = min(taken)
        return self._known[key]

    def table(
        self, type: TensorType, made: tuple[Placement, ...], want: tuple[Placement, ...]
    ) -> Floats:
        """Return the same from each placement to each; nothing where none is boxed."""
        key = type, made, want
        if key not in self._tables:
            prices = price_table(self._posed.problem.box_seconds, type, made, want)
            found = np.zeros_like(prices)
            for row, column in zip(*np.nonzero(np.isfinite(prices)), strict=True):
                if made[row] != want[column]:
                    found[row, column] = self.bytes(type, made[row], want[column])
            self._tables[key] = found
        return self._tables[key]

    @cached_property
    def _values(self) -> dict[object, list[Tensor]]:
        """By plain type, a tensor of each way to lie."""
        found: dict[object, dict[object, Tensor]] = {}
        whole = Placement.broadcast(self._posed.problem.mesh.ndim)
        for index, node in enumerate(self._posed.problem.nodes):
            for result, type_ in enumerate(node.result_types):
                if type_ is not None:
                    value = index, result
                    lies = self._lies.of(value, whole)
                    found.setdefault(_plain(type_), {}).setdefault(lies, value)
        return {type_: [*values.values()] for type_, values in found.items()}


def _plain(type: TensorType) -> object:
    """Return a type without what prices mark it with: that differs by problem."""
    return type.shape, type.dtype


def boxings_of(problem: Problem, choices: Sequence[int]) -> set[Boxing]:
    """Return the boxings of an assignment."""
    nodes = problem.nodes
    chosen = [n.choices[at] for n, at in zip(nodes, choices, strict=True)]
    found: set[Boxing] = set()
    for node, choice in zip(nodes, chosen, strict=True):
        wants = choice.signature.operands
        for (source, result), want in zip(node.operands, wants, strict=True):
            made = made_placement(chosen[source], result)
            if made is not want and made != want:
                type_ = nodes[source].result_types[result]
                assert type_ is not None
                found.add((type_, made, want))
    return found


def may_take(type: TensorType) -> float:
    """Return about what any boxing of a tensor takes at most."""
    return _MOST_TIMES * type.num_bytes


@dataclass(frozen=True, eq=False)
class WithinBytes:
    """Prices of boxings; infinite for those that there is no room for.

    Attributes:
        prices: of all boxings, in seconds.
        own: what each takes by itself.
        room: beside what stays and what is fed, in bytes of a rank, at least 0.
        known: those that are left in, whatever they take.
    """

    prices: Prices
    own: OwnBoxings
    room: float
    known: frozenset[Boxing]

    @classmethod
    def of(cls, posed: Posed, room: float, known: Sequence[int]) -> WithinBytes:
        """Return those of a posed problem, with all boxings of a known assignment.

        There is no room where it is less than 0.
        """
        left_in = frozenset(boxings_of(posed.problem, known))
        own = posed.known(OwnBoxings)
        return cls(posed.problem.box_seconds, own, max(room, 0.0), left_in)

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        """Return the seconds of the cheapest boxing from ``made`` to ``wanted``."""
        seconds = self.prices(type, made, wanted)
        if seconds == inf or may_take(type) <= self.room:
            return seconds
        is_over = self.own.bytes(type, made, wanted) > self.room
        return inf if is_over and (type, made, wanted) not in self.known else seconds

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Floats:
        """Return the seconds from each placement to each."""
        table = price_table(self.prices, type, made, wanted)
        if may_take(type) <= self.room:
            return table
        over = self.own.table(type, tuple(made), tuple(wanted)) > self.room
        for row, column in zip(*np.nonzero(over), strict=True):
            if (type, made[row], wanted[column]) in self.known:
                over[row, column] = False
        return np.where(over, inf, table)
