"""The integer program of a model, for HiGHS.

    x[i, a] in {0, 1}     variable i takes choice a;  sum_a x[i, a] = 1
    z[e, k, l] >= 0       edge e: its ends take classes k and l
        sum_l z[e, k, l] = sum_{a in class k} x[i, a],   and alike for l
    t[s, j, q, k] >= 0    star s, port j: made as q, class k wanted; rows as for z
    y[s, q, w] >= 0       star s: boxed from q to w
        y[s, q, w] >= sum_{k wants w} t[s, j, q, k]      for every port j
    minimize  cost . x + table . z + boxing . y

Only x is integer; the others follow. Entries that are impossible, or too dear by the
bound of ``relaxation.py``, have no column.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

import highspy
import numpy as np

from partita.compiler.search.highs import Rows, make_highs, make_lp, run_highs
from partita.compiler.search.model import NOBODY, Bools, Floats, Ints, Model, Star
from partita.compiler.search.relaxation import Relaxation

_OBJECTIVE = 1e4  # what the known cost is scaled to: HiGHS has absolute tolerances

_MOST_COLUMNS = 500_000  # more would take HiGHS gigabytes, and not end
_SAME = 1e-9  # the start may cost this much more by rounding, and must stay possible


class Outcome(NamedTuple):
    """What HiGHS found: positions, if any, and a lower bound on the cost.

    ``bound`` is infinite when the program has no solution at all.
    """

    positions: dict[int, int] | None
    bound: float


class _Program:
    """Columns and rows, collected in bulk."""

    def __init__(self) -> None:
        self.costs: list[Floats] = []
        self.num_columns = 0
        self.num_rows = 0
        self._rows: list[Ints] = []
        self._columns: list[Ints] = []
        self._values: list[Floats] = []
        self._right: list[Floats] = []
        self._above: list[Floats] = []

    def add_columns(self, costs: Floats) -> Ints:
        first = self.num_columns
        self.num_columns += len(costs)
        self.costs.append(costs)
        return np.arange(first, self.num_columns, dtype=np.int64)

    def add_rows(self, count: int, right: float, above: float) -> int:
        """Add rows ``right <= row <= above``; return the number of the first."""
        first = self.num_rows
        self.num_rows += count
        self._right.append(np.full(count, right))
        self._above.append(np.full(count, above))
        return first

    def put(self, rows: Ints, columns: Ints, value: float) -> None:
        self._rows.append(rows)
        self._columns.append(columns)
        self._values.append(np.full(len(rows), value))

    def transport(
        self, table: Floats, allowed: Bools, own: Ints, theirs: Ints, x: Ints, y: Ints
    ) -> Ints:
        """Add one column per allowed entry, tied to the choices x and y of the ends.

        Returns the column of each entry, -1 where there is none.
        """
        own_class, other_class = np.nonzero(allowed)
        columns = self.add_columns(table[own_class, other_class])
        where = np.full(table.shape, -1, dtype=np.int64)
        where[own_class, other_class] = columns
        for classes, index, choices, count in (
            (own, own_class, x, table.shape[0]),
            (theirs, other_class, y, table.shape[1]),
        ):
            if not len(choices):  # a tensor made in one known placement: they add to 1
                first = self.add_rows(1, 1.0, 1.0)
                self.put(np.full(len(columns), first), columns, 1.0)
                continue
            first = self.add_rows(count, 0.0, 0.0)
            self.put(first + index, columns, 1.0)
            self.put(first + classes, choices, -1.0)
        return where

    def to_highs(self, num_integer: int, scale: float) -> highspy.HighsLp:
        """Return the program; its first ``num_integer`` columns are integer."""
        rows, columns = np.concatenate(self._rows), np.concatenate(self._columns)
        order = np.lexsort((columns, rows))
        counts = np.bincount(rows, minlength=self.num_rows)
        sorted_rows = Rows(
            np.concatenate([[0], np.cumsum(counts)]),
            columns[order],
            np.concatenate(self._values)[order],
            np.concatenate(self._right),
            np.concatenate(self._above),
        )
        costs = np.concatenate(self.costs) * scale
        return make_lp(costs, np.ones(len(costs)), range(num_integer), sorted_rows)


def _add_star(
    program: _Program,
    star: Star,
    surpluses: Mapping[int, Floats],
    gap: float,
    x: Mapping[int, Ints],
) -> None:
    choices = np.zeros(0, dtype=np.int64)
    if star.producer != NOBODY:
        choices = x[star.producer]
    paid = (star.boxing > 0.0) & (star.boxing < inf)
    boxes = np.full(star.boxing.shape, -1, dtype=np.int64)
    boxes[paid] = program.add_columns(star.boxing[paid])
    for variable, port in star.ports.items():
        surplus = surpluses[variable]
        nothing = np.zeros(surplus.shape)
        allowed = (surplus <= gap) & (surplus < inf)
        where = program.transport(
            nothing, allowed, star.made, port.classes, choices, x[variable]
        )
        for column in np.flatnonzero(port.sets.any(axis=0)):
            takes = where[:, port.sets[:, column]]
            made = np.flatnonzero((boxes[:, column] >= 0) & (takes >= 0).any(axis=1))
            first = program.add_rows(len(made), 0.0, inf)
            program.put(first + np.arange(len(made)), boxes[made, column], 1.0)
            row, entry = np.nonzero(takes[made] >= 0)
            program.put(first + row, takes[made][row, entry], -1.0)


def solve_ilp(
    model: Model,
    relaxation: Relaxation,
    start: Mapping[int, int],
    known_cost: float,
    time_limit_s: float,
    threads: int,
) -> Outcome:
    """Search the model with HiGHS, from a known assignment of a known cost."""
    gap = known_cost * (1 + _SAME) - relaxation.bound
    program = _Program()
    x = {v: program.add_columns(cost) for v, cost in sorted(model.costs.items())}
    num_integer = program.num_columns
    first = program.add_rows(len(x), 1.0, 1.0)
    for index, columns in enumerate(x.values()):
        program.put(np.full(len(columns), first + index), columns, 1.0)
    for (one, two), surplus in relaxation.tables.items():
        edge = model.edges[one][two]
        program.transport(
            edge.table,
            (surplus <= gap) & (edge.table < inf),
            edge.first_class,
            edge.second_class,
            x[one],
            x[two],
        )
    for name, star in model.stars.items():
        _add_star(program, star, relaxation.stars[name].tables, gap, x)
    if program.num_columns > _MOST_COLUMNS and known_cost < inf:
        return Outcome(None, -inf)
    usual = known_cost if known_cost < inf else model.most_cost()
    scale = _OBJECTIVE / max(usual - model.constant, 1e-30)
    highs = make_highs(time_limit_s, threads, 1e-9)
    highs.setOptionValue("mip_abs_gap", 1e-9 * _OBJECTIVE)
    highs.passModel(program.to_highs(num_integer, scale))
    _warm_start(highs, x, start)
    values, bound = run_highs(highs)
    bound = model.constant + bound / scale
    if values is None:
        return Outcome(None, bound)
    return Outcome({v: int(values[own].argmax()) for v, own in x.items()}, bound)


def _warm_start(
    highs: highspy.Highs, x: Mapping[int, Ints], start: Mapping[int, int]
) -> None:
    """Give HiGHS the known choices; it works out the other columns."""
    index = np.concatenate(list(x.values())).astype(np.int32)
    value = np.zeros(len(index))
    for variable, columns in x.items():
        value[columns[start[variable]]] = 1.0
    highs.setSolution(len(index), index, value)
