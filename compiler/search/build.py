"""From a search problem to its model in numbers."""

from __future__ import annotations

from collections import Counter
from math import inf

import numpy as np

from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.errors import NoSolution
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.fold import Fold, Shared
from partita.compiler.search.leaving import boxing_table
from partita.compiler.search.model import (
    Bools,
    Floats,
    Model,
    Port,
    Star,
    price_of_sets,
)
from partita.compiler.search.problem import LetGo, Tie, tied_placement


def _join_columns(ports: dict[int, tuple[list[int], Port]]) -> list[int]:
    """Give all ports of a tensor the same columns; return the placements they mean."""
    columns = sorted({column for own, _ in ports.values() for column in own})
    position = {column: index for index, column in enumerate(columns)}
    for own, port in ports.values():
        sets: Bools = np.zeros((len(port.sets), len(columns)), dtype=np.bool_)
        sets[:, [position[column] for column in own]] = port.sets
        port.sets = sets
    return columns


def build_model(fold: Fold) -> Model:
    """Return the model of a folded problem, its variables numbered as the classes.

    A variable of a higher number stands in for the class of that number less theirs.
    Views that are handed on what is made have to take it so: an assignment of the model
    costs what it does once it is ``settled``.

    Raises:
        NoSolution: when a node has nothing to choose from, or a tie cannot hold.
    """
    return _Builder(fold).build()


class _Builder:
    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.problem = fold.problem
        self.nodes = [self.problem.nodes[members[0]] for members in fold.members]
        self.model = Model()
        self.offers = fold.offers
        self._stand_ins: dict[int, int] = {}

    def build(self) -> Model:
        model = self.model
        for number, node in enumerate(self.nodes):
            if not node.choices:
                raise NoSolution(f"{node.key}: no signature is left to choose from")
            cost = self._seconds(number)
            model.add_variable(number, cost, np.arange(len(cost), dtype=np.int64))
        for name, shared in enumerate(self.fold.shared):
            self._add(name, shared)
        for tie in self.fold.ties:
            self._tie(tie)
        return model

    def _seconds(self, number: int) -> Floats:
        """Return the seconds per choice of all nodes of a class together."""
        members = (self.problem.nodes[node] for node in self.fold.members[number])
        counts = Counter(id(node.choices) for node in members)
        total: Floats = np.zeros(len(self.nodes[number].choices))
        for node in self.fold.members[number]:
            choices = self.problem.nodes[node].choices
            count = counts.pop(id(choices), 0)
            if count:
                total += count * np.array([choice.seconds for choice in choices])
        return total

    def _add(self, name: int, shared: Shared) -> None:
        type_ = self.nodes[shared.source].result_types[shared.result]
        assert type_ is not None
        rows, row_of = self.offers.made(shared.source, shared.result)
        ports = {user: self.offers.wanted(user, at) for user, at in shared.users}
        columns = _join_columns(ports)
        values = self.offers.placements
        made, wanted = [values[r] for r in rows], [values[c] for c in columns]
        tensor = shared.source, shared.result
        boxing = boxing_table(self.fold, tensor, made, wanted)
        boxing = boxing * shared.times
        if any(user in self.fold.handed for user, _ in shared.users):
            is_same = np.array(rows)[:, None] == np.array(columns)[None, :]
            boxing = np.where(is_same, 0.0, inf)
        if shared.rate:
            sizes = self._sizes(type_, rows), self._sizes(type_, columns)
            boxing = self._with_held_copies(shared, sizes, boxing, ports)
        boxing = boxing * shared.count
        source = shared.source
        if source in ports:  # the block before is of its own class
            source = self._stand_in(source)
        for user, position, let_go in shared.freed:
            self._free(shared, source, (user, position), let_go)
        if len(ports) == 1:
            ((user, (_, port)),) = ports.items()
            table = price_of_sets(boxing, port.sets)
            self.model.add_edge(source, user, table, row_of, port.classes)
        else:
            just_ports = {user: port for user, (_, port) in ports.items()}
            self.model.add_star(name, Star(source, row_of, boxing, just_ports))

    def _sizes(self, type_: TensorType, placements: list[int]) -> Floats:
        values = (self.offers.placements[placement] for placement in placements)
        held = [held_bytes(type_, value, self.problem.mesh) for value in values]
        return np.array(held, dtype=np.float64)

    def _with_held_copies(
        self,
        shared: Shared,
        sizes: tuple[Floats, Floats],
        boxing: Floats,
        ports: dict[int, tuple[list[int], Port]],
    ) -> Floats:
        """Charge copies that both halves want for being held between them.

        Of the price p of a boxing, p - h is paid by whoever wants it, h by the forward
        and h by the backward: p for one of them, p + h for both.
        """
        held = self.problem.held
        assert held is not None
        late = [u for u in ports if held.in_backward[self.fold.members[u][0]]]
        if not late or len(late) == len(ports):
            return boxing
        made, wanted = sizes
        more = wanted[None, :] - shared.charged * made[:, None]
        own = shared.rate * np.maximum(more, 0.0)
        own = np.where(boxing < inf, np.minimum(own, boxing), 0.0)
        charged = np.flatnonzero(own.max(axis=0) > 0.0)
        for user, (_, port) in ports.items():
            half = port.sets[:, charged]
            none = np.zeros_like(half)
            halves = (none, half) if user in late else (half, none)
            port.sets = np.concatenate([port.sets, *halves], axis=1)
        parts = [boxing - own, own[:, charged], own[:, charged]]
        return np.concatenate(parts, axis=1)

    def _free(
        self, shared: Shared, source: int, use: tuple[int, int], let_go: LetGo
    ) -> None:
        """Give back what a smaller copy takes less than the tensor that it is of."""
        type_ = self.nodes[shared.source].result_types[shared.result]
        assert type_ is not None
        rows, row_of = self.offers.made(shared.source, shared.result)
        columns, port = self.offers.wanted(use[0], (use[1],))
        order = [columns[int(column)] for column in port.sets.argmax(axis=1)]
        made, wanted = self._sizes(type_, rows), self._sizes(type_, order)
        held = shared.charged * made
        less = np.maximum(held[:, None] - wanted[None, :], 0.0)
        charged = let_go.charged.most(let_go.rate, held)[:, None]
        is_boxed = np.array(rows)[:, None] != np.array(order)[None, :]
        given = np.where(is_boxed, np.minimum(let_go.rate * less, charged), 0.0)
        freed = shared.count * given
        most = float(freed.max())
        if most > 0.0:  # nothing in a model is negative
            self.model.constant -= most
            table = most - freed
            self.model.add_edge(source, use[0], table, row_of, port.classes)

    def _stand_in(self, number: int) -> int:
        """Return a variable that chooses as the class does, and costs nothing."""
        if number not in self._stand_ins:
            count = len(self.nodes[number].choices)
            every = np.arange(count, dtype=np.int64)
            stand_in = len(self.nodes) + number
            self._stand_ins[number] = stand_in
            self.model.add_variable(stand_in, np.zeros(count), every)
            same = np.where(np.eye(count, dtype=np.bool_), 0.0, inf)
            self.model.add_edge(stand_in, number, same, every, every)
        return self._stand_ins[number]

    def _tie(self, tie: Tie) -> None:
        rows, row_of = self.offers.tied(tie.first)
        columns, port = self.offers.wanted(tie.second, (0,))
        if not set(rows) & set(columns):
            raise NoSolution(self._tie_message(tie))
        order = [columns[int(column)] for column in port.sets.argmax(axis=1)]
        table = np.array([[0.0 if a == b else inf for b in order] for a in rows])
        self.model.add_edge(tie.first, tie.second, table, row_of, port.classes)

    def _tie_message(self, tie: Tie) -> str:
        first, second = self.nodes[tie.first], self.nodes[tie.second]
        stored = sorted({str(tied_placement(choice)) for choice in first.choices})
        taken = sorted({str(c.signature.operands[0]) for c in second.choices})
        return (
            f"{second.key} must hand on what it takes in the placement of "
            f"{first.key}, but takes only {', '.join(taken)} and that can be only "
            f"{', '.join(stored)}"
        )
