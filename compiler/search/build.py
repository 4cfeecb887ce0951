"""From a search problem to its model in numbers."""

from __future__ import annotations

from math import inf

import numpy as np

from partita.compiler.errors import NoSolution
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.model import (
    Bools,
    Floats,
    Ints,
    Model,
    Port,
    Star,
    price_of_sets,
)
from partita.compiler.search.problem import Problem, Tie, made_placement


class _Placements:
    """Placements as small integers, so that they are hashed once per object."""

    def __init__(self) -> None:
        self.values: list[Placement] = []
        self._numbers: dict[Placement, int] = {}
        self._numbers_by_id: dict[int, int] = {}

    def number(self, placement: Placement) -> int:
        found = self._numbers_by_id.get(id(placement))
        if found is None:
            found = self._numbers.setdefault(placement, len(self.values))
            if found == len(self.values):
                self.values.append(placement)
            self._numbers_by_id[id(placement)] = found
        return found


class _Prices:
    """Boxing prices, asked for once per type and pair of placements."""

    def __init__(self, problem: Problem, placements: _Placements) -> None:
        self._box_seconds = problem.box_seconds
        self._placements = placements
        self._known: dict[TensorType, dict[tuple[int, int], float]] = {}

    def table(self, type_: TensorType, made: list[int], wanted: list[int]) -> Floats:
        known = self._known.setdefault(type_, {})
        values = self._placements.values
        rows: list[list[float]] = []
        for source in made:
            row: list[float] = []
            for target in wanted:
                price = known.get((source, target))
                if price is None:
                    price = 0.0
                    if source != target:
                        price = self._box_seconds(type_, values[source], values[target])
                    known[source, target] = price
                row.append(price)
            rows.append(row)
        return np.array(rows, dtype=np.float64)


def _classes(codes: list[int]) -> tuple[list[int], Ints]:
    """Return the distinct codes and the index of each code among them."""
    order = {code: index for index, code in enumerate(dict.fromkeys(codes))}
    return list(order), np.array([order[code] for code in codes], dtype=np.int64)


def _port(wants: list[frozenset[int]]) -> tuple[list[int], Port]:
    """Return the placements wanted at all, and the port over them."""
    order = {want: index for index, want in enumerate(dict.fromkeys(wants))}
    columns = sorted(frozenset[int]().union(*order))
    sets = np.array([[w in want for w in columns] for want in order], dtype=np.bool_)
    classes = np.array([order[want] for want in wants], dtype=np.int64)
    return columns, Port(sets, classes)


def _join_columns(ports: dict[int, tuple[list[int], Port]]) -> list[int]:
    """Give all ports of a tensor the same columns; return the placements they mean."""
    columns = sorted({column for own, _ in ports.values() for column in own})
    position = {column: index for index, column in enumerate(columns)}
    for own, port in ports.values():
        sets: Bools = np.zeros((len(port.sets), len(columns)), dtype=np.bool_)
        sets[:, [position[column] for column in own]] = port.sets
        port.sets = sets
    return columns


def _tie_message(problem: Problem, tie: Tie) -> str:
    first, second = problem.nodes[tie.first], problem.nodes[tie.second]
    stored = sorted({str(made_placement(choice, 0)) for choice in first.choices})
    taken = sorted({str(c.signature.operands[0]) for c in second.choices})
    return (
        f"{second.key} must hand on what it takes in the placement of {first.key}, "
        f"but takes only {', '.join(taken)} and that can be only {', '.join(stored)}"
    )


def build_model(problem: Problem) -> Model:
    """Return the model of a problem, its variables numbered as the nodes.

    Raises:
        NoSolution: when a node has nothing to choose from, or a tie cannot hold.
    """
    model = Model()
    placements = _Placements()
    prices = _Prices(problem, placements)
    consumers: dict[tuple[int, int], dict[int, list[int]]] = {}
    for index, node in enumerate(problem.nodes):
        if not node.choices:
            raise NoSolution(f"{node.key}: no signature is left to choose from")
        cost = np.array([choice.seconds for choice in node.choices], dtype=np.float64)
        model.add_variable(index, cost, np.arange(len(cost), dtype=np.int64))
        for position, value in enumerate(node.operands):
            consumers.setdefault(value, {}).setdefault(index, []).append(position)

    def made(node: int, result: int) -> tuple[list[int], Ints]:
        choices = problem.nodes[node].choices
        return _classes(
            [placements.number(made_placement(choice, result)) for choice in choices]
        )

    def wanted(node: int, positions: list[int]) -> tuple[list[int], Port]:
        operands = [c.signature.operands for c in problem.nodes[node].choices]
        return _port(
            [
                frozenset(placements.number(own[p]) for p in positions)
                for own in operands
            ]
        )

    for name, (value, users) in enumerate(consumers.items()):
        source, result = value
        type_ = problem.nodes[source].result_types[result]
        assert type_ is not None
        rows, row_of = made(source, result)
        ports = {user: wanted(user, positions) for user, positions in users.items()}
        columns = _join_columns(ports)
        boxing = prices.table(type_, rows, columns)
        if len(ports) == 1:
            ((user, (_, port)),) = ports.items()
            table = price_of_sets(boxing, port.sets)
            model.add_edge(source, user, table, row_of, port.classes)
        else:
            just_ports = {user: port for user, (_, port) in ports.items()}
            model.add_star(name, Star(source, row_of, boxing, just_ports))
    for tie in problem.ties:
        rows, row_of = made(tie.first, 0)
        columns, port = wanted(tie.second, [0])
        if not set(rows) & set(columns):
            raise NoSolution(_tie_message(problem, tie))
        order = [columns[int(column)] for column in port.sets.argmax(axis=1)]
        table = np.array([[0.0 if a == b else inf for b in order] for a in rows])
        model.add_edge(tie.first, tie.second, table, row_of, port.classes)
    return model
