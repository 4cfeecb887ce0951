"""The search problem as numbers: variables, edges between two, stars among several.

A variable is a node, its values are the positions of its remaining choices. An edge
prices the classes of two variables jointly; choices that an edge cannot tell apart
share a class. A star is a tensor wanted by several variables: a boxing is paid once
for each placement that at least one of them wants.

Everything that the reductions do to a model keeps the cost of its best assignment;
``undo`` remembers how to extend a best assignment to the variables that are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_MOST_COUNTED = 1 << 12  # with larger classes it is faster to sort
NOBODY = -1  # the producer of a star whose tensor is made in one known placement


class DeadEnd(Exception):
    """A variable has no possible choice left; ``variable`` says which."""

    def __init__(self, variable: int) -> None:
        super().__init__(variable)
        self.variable = variable


def compact(classes: Ints) -> tuple[Ints, Ints]:
    """Return the classes in use, and each choice's index among them."""
    if len(classes) and classes.max() > _MOST_COUNTED:
        used, inverse = np.unique(classes, return_inverse=True)
        return used, inverse.astype(np.int64).reshape(-1)
    is_used = np.bincount(classes) > 0
    return np.flatnonzero(is_used), (is_used.cumsum() - 1)[classes]


def price_of_sets(boxing: Floats, sets: Bools) -> Floats:
    """Return the price [made, set] of boxing to every placement of a set."""
    if sets.shape[1] == 0:
        return np.zeros((boxing.shape[0], sets.shape[0]))
    if (sets.sum(axis=1) == 1).all():
        return boxing[:, sets.argmax(axis=1)]
    # where, since infinity times zero is not a number
    return np.where(sets[None], boxing[:, None, :], 0.0).sum(axis=2)


class View(NamedTuple):
    """An edge as one end sees it."""

    table: Floats  # [own class, other's class]
    own: Ints
    other: Ints


@dataclass(slots=True)
class Edge:
    """A price ``table[first_class[a], second_class[b]]`` for two variables' choices."""

    first: int
    second: int
    table: Floats
    first_class: Ints
    second_class: Ints

    def seen_from(self, variable: int) -> View:
        """Return the edge with ``variable`` along the rows."""
        if variable == self.first:
            return View(self.table, self.first_class, self.second_class)
        return View(self.table.T, self.second_class, self.first_class)

    def other(self, variable: int) -> int:
        """Return the variable at the other end."""
        return self.second if variable == self.first else self.first

    def restrict(self, variable: int, keep: Bools) -> None:
        """Forget the choices of ``variable`` that are not kept.

        A table that loses no class stays the same array, by which it is known.
        """
        if variable == self.first:
            used, self.first_class = compact(self.first_class[keep])
            if len(used) < self.table.shape[0]:
                self.table = self.table[used]
        else:
            used, self.second_class = compact(self.second_class[keep])
            if len(used) < self.table.shape[1]:
                self.table = self.table[:, used]


@dataclass(slots=True)
class Port:
    """What one variable wants of a tensor: choice -> class -> a set of placements."""

    sets: Bools  # [class, wanted placement]
    classes: Ints


@dataclass(slots=True)
class Star:
    """A tensor with several consumers; ``boxing`` is [made class, wanted placement]."""

    producer: int
    made: Ints
    boxing: Floats
    ports: dict[int, Port]


class Gone(NamedTuple):
    """A variable that left: its choices, their costs, and the edges it had."""

    variable: int
    domain: Ints
    cost: Floats
    views: tuple[tuple[int, Ints, View], ...]  # other variable, its domain, the edge


@dataclass(slots=True)
class Model:
    """Variables with a cost per choice; edges; stars; what was folded away."""

    costs: dict[int, Floats] = field(default_factory=dict[int, Floats])
    domains: dict[int, Ints] = field(default_factory=dict[int, Ints])
    edges: dict[int, dict[int, Edge]] = field(
        default_factory=dict[int, dict[int, Edge]]
    )
    stars: dict[int, Star] = field(default_factory=dict[int, Star])
    stars_of: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    constant: float = 0.0
    undo: list[Gone] = field(default_factory=list[Gone])

    @property
    def num_choices(self) -> int:
        """The number of choices that all variables have together."""
        return sum(len(cost) for cost in self.costs.values())

    def add_variable(self, variable: int, cost: Floats, domain: Ints) -> None:
        """Add a variable with a cost per choice; ``domain`` ascends."""
        self.costs[variable] = cost
        self.domains[variable] = domain
        self.edges[variable] = {}
        self.stars_of[variable] = set()

    def add_edge(
        self, first: int, second: int, table: Floats, own: Ints, other: Ints
    ) -> None:
        """Add a joint price; it joins the edge that may be there already."""
        there = self.edges[first].get(second)
        if there is not None:
            old, old_own, old_other = there.seen_from(first)
            left, own = compact(old_own * table.shape[0] + own)
            right, other = compact(old_other * table.shape[1] + other)
            old_rows, rows = np.divmod(left, table.shape[0])
            old_columns, columns = np.divmod(right, table.shape[1])
            table = table[np.ix_(rows, columns)] + old[np.ix_(old_rows, old_columns)]
        edge = Edge(first, second, table, own, other)
        self.edges[first][second] = self.edges[second][first] = edge

    def add_star(self, name: int, star: Star) -> None:
        """Add a tensor with several consumers."""
        self.stars[name] = star
        for variable in self.members(star):
            self.stars_of[variable].add(name)

    def members(self, star: Star) -> list[int]:
        """Return the variables that a star joins, its producer first."""
        head = [] if star.producer == NOBODY else [star.producer]
        return [*head, *star.ports]

    def neighbours(self, variable: int) -> set[int]:
        """Return the variables that share an edge or a star with ``variable``."""
        found = set(self.edges[variable])
        for name in self.stars_of[variable]:
            found.update(self.members(self.stars[name]))
        found.discard(variable)
        return found

    def restrict(self, variable: int, keep: Bools) -> None:
        """Forget the choices of a variable that are not kept.

        Tables that lose no class stay the same arrays, by which they are known.
        """
        self.costs[variable] = self.costs[variable][keep]
        self.domains[variable] = self.domains[variable][keep]
        for edge in self.edges[variable].values():
            edge.restrict(variable, keep)
        for name in self.stars_of[variable]:
            star = self.stars[name]
            if star.producer == variable:
                used, star.made = compact(star.made[keep])
                if len(used) < len(star.boxing):
                    star.boxing = star.boxing[used]
            if variable in star.ports:
                port = star.ports[variable]
                used, port.classes = compact(port.classes[keep])
                if len(used) < len(port.sets):
                    port.sets = port.sets[used]

    def remove_edge(self, edge: Edge) -> None:
        """Take an edge out."""
        del self.edges[edge.first][edge.second]
        del self.edges[edge.second][edge.first]

    def remove_variable(self, variable: int) -> None:
        """Take a variable out, for ``extend`` to decide later; it is in no star."""
        assert not self.stars_of[variable]
        edges = list(self.edges[variable].values())
        views = tuple(
            (
                edge.other(variable),
                self.domains[edge.other(variable)],
                edge.seen_from(variable),
            )
            for edge in edges
        )
        domain, cost = self.domains.pop(variable), self.costs.pop(variable)
        self.undo.append(Gone(variable, domain, cost, views))
        for edge in edges:
            self.remove_edge(edge)
        del self.edges[variable], self.stars_of[variable]

    def extend(self, chosen: Mapping[int, int]) -> dict[int, int]:
        """Return ``chosen`` with the best choice for every variable that is gone."""
        full = dict(chosen)
        for gone in reversed(self.undo):
            cost = gone.cost.copy()
            for other, domain, view in gone.views:
                position = int(np.searchsorted(domain, full[other]))
                cost += view.table[view.own, view.other[position]]
            full[gone.variable] = int(gone.domain[int(cost.argmin())])
        return full

    def cost_of(self, positions: Mapping[int, int]) -> float:
        """Return the cost of an assignment: a position per remaining variable."""
        total = self.constant
        for variable, cost in self.costs.items():
            here = positions[variable]
            total += float(cost[here])
            for other, edge in self.edges[variable].items():
                if variable == edge.first:
                    own = edge.first_class[here]
                    theirs = edge.second_class[positions[other]]
                    total += float(edge.table[own, theirs])
        for star in self.stars.values():
            row = 0
            if star.producer != NOBODY:
                row = int(star.made[positions[star.producer]])
            wanted = np.zeros(star.boxing.shape[1], dtype=np.bool_)
            for variable, port in star.ports.items():
                wanted |= port.sets[port.classes[positions[variable]]]
            total += float(star.boxing[row, wanted].sum())
        return total if total < inf else inf

    def most_cost(self) -> float:
        """Return an upper limit of what a possible assignment can cost."""
        arrays = [*self.costs.values()]
        arrays += [e.table for es in self.edges.values() for e in es.values()]
        arrays += [
            star.boxing.sum(axis=1, where=star.boxing < inf)
            for star in self.stars.values()
        ]
        finite = (float(a.max(initial=0.0, where=a < inf)) for a in arrays)
        return self.constant + sum(finite)
