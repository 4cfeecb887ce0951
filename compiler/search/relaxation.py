"""A lower bound on the cost, by moving costs about until nothing more can be gained.

This is the dual of the linear relaxation that ``ilp.py`` writes down, climbed by
sequential tree-reweighted message passing (Kolmogorov, "Convergent Tree-Reweighted
Message Passing for Energy Minimization", PAMI 28(10), 2006) in the form of
reparametrizations: at any time

    cost(x) >= bound + sum_i theta_i(x_i) + sum_links table(x_i, x_j)

holds for every assignment x, and everything on the right is non-negative. So
``bound`` is a true lower bound at any time, and ``bound + theta_i(a) + ...`` is one
for all assignments with x_i = a: what exceeds a known cost needs no search.

A star is split into one link per port, each with a share of the boxing prices; shares
that a port can do without go to the others after every sweep (``split_star.py``).
``sweeps.py`` moves the costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from partita.compiler.search.link import End
from partita.compiler.search.model import (
    NOBODY,
    Bools,
    DeadEnd,
    Floats,
    Ints,
    Model,
)
from partita.compiler.search.reduction import possible_choices
from partita.compiler.search.split_star import SharingOut, SplitStar
from partita.compiler.search.sweeps import Sweeps


def _used(classes: Ints) -> Ints:
    """Return the classes that occur, in order."""
    return np.flatnonzero(np.bincount(classes))


def _stand_in(name: int) -> int:
    """Return the variable without a say that makes a star's tensor if nobody does."""
    return -2 - name


class Relaxation:
    """The lower bound of one model, whose choices only ``restrict`` may take away."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.bound = model.constant
        self.theta = {variable: cost.copy() for variable, cost in model.costs.items()}
        self.stars = {name: SplitStar(star) for name, star in model.stars.items()}
        self.tables: dict[tuple[int, int], Floats] = {}
        for variable, edges in model.edges.items():
            for other, edge in edges.items():
                if variable == edge.first:
                    lowest = float(edge.table.min())
                    self.bound += lowest
                    self.tables[variable, other] = edge.table - lowest
        for name, star in model.stars.items():
            if star.producer == NOBODY:
                self.theta[_stand_in(name)] = np.zeros(1)
        self._connect()
        self.follow([*model.costs])

    def _connect(self) -> None:
        """Make the ends of all links anew, their tables parts of one array."""
        links = [
            (first, second, edge.first_class, edge.second_class)
            for first, second in self.tables
            for edge in (self._model.edges[first][second],)
        ]
        tables = [*self.tables.values()]
        for name, split in self.stars.items():
            star = self._model.stars[name]
            producer, made = star.producer, star.made
            if producer == NOBODY:
                producer, made = _stand_in(name), np.zeros(1, dtype=np.int64)
            for variable, table in split.tables.items():
                links.append((producer, variable, made, star.ports[variable].classes))
                tables.append(table)
        self.num_links = len(links)
        self._all_tables = np.concatenate([np.zeros(0), *map(np.ravel, tables)])
        self.ends: dict[int, list[End]] = {variable: [] for variable in self.theta}
        parts: list[Floats] = []
        at = 0
        for number, (first, second, own, theirs) in enumerate(links):
            shape, size = tables[number].shape, tables[number].size
            table = self._all_tables[at : at + size].reshape(shape)
            parts.append(table)
            side = 2 * number
            ends = self.ends
            ends[first].append(End(number, side, at, second, table, own, theirs))
            ends[second].append(End(number, side + 1, at, first, table.T, theirs, own))
            at += size
        every = iter(parts)
        self.tables = {pair: next(every) for pair in self.tables}
        for split in self.stars.values():
            split.tables = {variable: next(every) for variable in split.tables}

    def restrict(self, keeps: Mapping[int, Bools]) -> None:
        """Take choices away from the model, and what that makes impossible.

        What was moved about stays, so that the bound does not fall.

        Raises:
            DeadEnd: when a variable keeps no choice.
        """
        while not all(keep.all() for keep in keeps.values()):
            for variable, keep in keeps.items():
                if not keep.any():
                    raise DeadEnd(variable)
            self._restrict(keeps)
            keeps = {v: possible_choices(self._model, v) for v in self._model.costs}
        self._connect()
        self.follow([v for v in self._order if v >= 0])

    def _restrict(self, keeps: Mapping[int, Bools]) -> None:
        model = self._model
        for (first, second), table in self.tables.items():
            edge = model.edges[first][second]
            rows = _used(edge.first_class[keeps[first]])
            columns = _used(edge.second_class[keeps[second]])
            self.tables[first, second] = table[rows[:, None], columns]
        for name, split in self.stars.items():
            star = model.stars[name]
            made = np.zeros(1, dtype=np.int64)
            if star.producer != NOBODY:
                made = _used(star.made[keeps[star.producer]])
            classes = {
                variable: _used(port.classes[keeps[variable]])
                for variable, port in star.ports.items()
            }
            split.restrict(made, classes)
        for variable, keep in keeps.items():
            self.theta[variable] = self.theta[variable][keep]
            if not keep.all():
                model.restrict(variable, keep)

    def follow(self, order: Sequence[int]) -> None:
        """Sweep in this order from now on; those without a say come first."""
        self._order = [*(v for v in self.theta if v < 0), *order]
        self._made: Sweeps | None = None

    def sweep(self, times: int = 1) -> None:
        """Go through all variables there and back; the bound can only rise."""
        sweeps = self._sweeps()
        self.bound += sweeps.run(times)
        sweeps.write_back()

    def lean(self) -> None:
        """Move everything as far as possible to the front of the order.

        A search along the order then meets early what a choice will cost later.
        """
        sweeps = self._sweeps()
        self.bound += sweeps.lean()
        sweeps.write_back()

    def _sweeps(self) -> Sweeps:
        """Return what sweeps along the order; it shares ``theta``."""
        if self._made is None:
            stars = SharingOut(self.stars)
            tables = self._all_tables
            made = Sweeps(self._order, self.ends, self.theta, tables, stars)
            self.theta = {v: made.theta[made.place[v]] for v in self.theta}
            self._made = made
        return self._made

    def decode(self) -> dict[int, int]:
        """Return an assignment that follows the relaxation, variable by variable."""
        positions: dict[int, int] = {}
        for variable in self._order:
            cost = self.theta[variable].copy()
            for end in self.ends[variable]:
                if end.other in positions:
                    column = end.theirs[positions[end.other]]
                    cost += end.table[:, column][end.own]
                else:
                    cost += end.table.min(axis=1)[end.own]
            positions[variable] = int(cost.argmin())
        return {v: p for v, p in positions.items() if v in self._model.costs}
