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
that a port can do without go to the others after every sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from partita.compiler.search.model import (
    NOBODY,
    Bools,
    DeadEnd,
    Floats,
    Ints,
    Model,
    Star,
    price_of_sets,
)
from partita.compiler.search.reduction import possible_choices


@dataclass(slots=True)
class End:
    """One end of a link: ``table`` is [own class, other's class], shared by both."""

    link: int  # the same number for both ends
    side: int  # a number of its own; that of the link's other end is ``side ^ 1``
    other: int
    table: Floats
    own: Ints
    theirs: Ints
    order: Ints = field(init=False)  # choices sorted by class, and where classes start
    starts: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.order = np.argsort(self.own, kind="stable")
        classes = np.arange(len(self.table))
        self.starts = np.searchsorted(self.own[self.order], classes)

    def least(self, values: Floats) -> Floats:
        """Return the smallest value in each own class."""
        return np.minimum.reduceat(values[self.order], self.starts)


class SplitStar:
    """The shares [port, made, wanted] of a star's prices, and the ports' tables."""

    def __init__(self, star: Star) -> None:
        self.sets = {variable: port.sets for variable, port in star.ports.items()}
        prices = np.where(star.boxing < inf, star.boxing, 0.0)
        takes = np.array([sets.any(axis=0) for sets in self.sets.values()])[:, None, :]
        self.shares = takes * (prices / np.maximum(takes.sum(axis=0), 1))
        self.tables: dict[int, Floats] = {}
        for variable, share in self.share_of().items():
            sets = self.sets[variable]
            impossible = np.isinf(price_of_sets(star.boxing, sets))
            table = np.where(impossible, inf, price_of_sets(share, sets))
            self.tables[variable] = np.ascontiguousarray(table)
        self._look_at_sets()

    def _look_at_sets(self) -> None:
        takes = np.array([sets.any(axis=0) for sets in self.sets.values()])
        self.takers = takes[:, None, :].astype(np.float64)
        self.count = np.maximum(self.takers.sum(axis=0), 1.0)
        # (class, placement) pairs of the ports whose classes want one or none each
        self.singles: dict[int, tuple[Ints, Ints]] = {}
        for variable, sets in self.sets.items():
            if sets.sum(axis=1).max() <= 1 and sets.sum(axis=0).max() <= 1:
                classes, columns = np.nonzero(sets)
                self.singles[variable] = (classes, columns)

    def restrict(self, made: Ints, classes: dict[int, Ints]) -> None:
        """Keep these classes of the producer and of every port."""
        self.shares = np.ascontiguousarray(self.shares[:, made])
        for variable, kept in classes.items():
            self.sets[variable] = self.sets[variable][kept]
            self.tables[variable] = self.tables[variable][np.ix_(made, kept)]
        self._look_at_sets()

    def share_of(self) -> dict[int, Floats]:
        """Return each port's share [made, wanted] of the prices."""
        return dict(zip(self.sets, self.shares, strict=True))

    def level(self) -> None:
        """Take from every port what it can spare and share it out evenly."""
        spare = np.where(self.takers > 0.0, 0.0, self.shares)
        for port, (variable, table) in enumerate(self.tables.items()):
            sets = self.sets[variable]
            if variable in self.singles:
                classes, columns = self.singles[variable]
                spare[port][:, columns] = table[:, classes]
            else:
                part = table / np.maximum(sets.sum(axis=1), 1)
                spread = np.where(sets[None], part[:, :, None], inf)
                spare[port] = spread.min(axis=1)
        np.minimum(spare, self.shares, out=spare)
        change = self.takers * (spare.sum(axis=0) / self.count) - spare
        self.shares += change
        for port, (variable, table) in enumerate(self.tables.items()):
            if variable in self.singles:
                classes, columns = self.singles[variable]
                table[:, classes] += change[port][:, columns]
            else:
                table += change[port] @ self.sets[variable].T
        # Rounding must not leave anything negative: the bound relies on it.
        for table in self.tables.values():
            np.maximum(table, 0.0, out=table)


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
        self.num_links = 0
        self._connect()
        self.follow([*model.costs])

    def _connect(self) -> None:
        """Make the ends of all links anew."""
        self.num_links = 0
        # by side: whether every row of its table has a zero, and nothing to collect
        self._is_bare: list[bool] = []
        self._star_sides: list[int] = []
        self.ends: dict[int, list[End]] = {variable: [] for variable in self.theta}
        for (first, second), table in self.tables.items():
            edge = self._model.edges[first][second]
            self._link(first, second, table, edge.first_class, edge.second_class)
        for name, split in self.stars.items():
            star = self._model.stars[name]
            producer, made = star.producer, star.made
            if producer == NOBODY:
                producer, made = _stand_in(name), np.zeros(1, dtype=np.int64)
            for variable, table in split.tables.items():
                classes = star.ports[variable].classes
                self._star_sides += (2 * self.num_links, 2 * self.num_links + 1)
                self._link(producer, variable, table, made, classes)

    def _link(
        self, first: int, second: int, table: Floats, own: Ints, theirs: Ints
    ) -> None:
        number = self.num_links
        self.num_links += 1
        self._is_bare += (False, False)
        side = 2 * number
        self.ends[first].append(End(number, side, second, table, own, theirs))
        self.ends[second].append(End(number, side + 1, first, table.T, theirs, own))

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
        place = {variable: index for index, variable in enumerate(self._order)}
        self._forward = self._later(place, 1)
        self._backward = self._later(place, -1)

    def _later(self, place: dict[int, int], sign: int) -> dict[int, list[End]]:
        return {
            variable: [e for e in ends if sign * (place[e.other] - place[variable]) > 0]
            for variable, ends in self.ends.items()
        }

    def sweep(self) -> None:
        """Go through all variables there and back; the bound can only rise."""
        for variable in self._order:
            ahead = self._forward[variable]
            others = max(len(ahead), len(self._backward[variable]))
            self._visit(variable, ahead, others)
        for variable in reversed(self._order):
            ahead = self._backward[variable]
            others = max(len(ahead), len(self._forward[variable]))
            self._visit(variable, ahead, others)
        for star in self.stars.values():
            star.level()
        for side in self._star_sides:
            self._is_bare[side] = False

    def lean(self) -> None:
        """Move everything as far as possible to the front of the order.

        A search along the order then meets early what a choice will cost later.
        """
        for variable in reversed(self._order):
            ahead = self._backward[variable]
            self._visit(variable, ahead, len(ahead))

    def _visit(self, variable: int, ahead: list[End], num_parts: int) -> None:
        """Collect from all links, and hand equal parts to the links ahead."""
        theta, is_bare = self.theta[variable], self._is_bare
        for end in self.ends[variable]:
            if is_bare[end.side]:
                continue
            least = np.minimum.reduce(end.table, axis=1)
            is_bare[end.side] = True
            if np.count_nonzero(least):
                end.table -= least[:, None]
                theta += least[end.own]
                is_bare[end.side ^ 1] = False
        lowest = np.minimum.reduce(theta)
        self.bound += float(lowest)
        theta -= lowest
        if not ahead or not np.count_nonzero(theta):
            return
        part = theta / num_parts
        for end in ahead:
            give = end.least(part)
            if np.count_nonzero(give):
                end.table += give[:, None]
                theta -= give[end.own]
                is_bare[end.side] = is_bare[end.side ^ 1] = False
        np.maximum(theta, 0.0, out=theta)

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
