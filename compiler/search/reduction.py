"""Exact reductions: what can be decided without a search.

* *Dead ends.* A choice that some edge or star makes impossible goes.
* *Dominance.* Choice b goes when some a costs no more whatever the others do:
  cost(a) - cost(b) + sum over edges and stars of the largest difference between a
  and b is at most zero (Goldstein's criterion for dead-end elimination, "Efficient
  rotamer elimination applied to protein side-chains and related spin glasses",
  Biophysical Journal 66, 1994).
* *Elimination.* A variable with no star and at most two edges is minimized out; with
  two, an edge between its neighbours takes its place (min-plus; Bertele and Brioschi,
  "Nonserial Dynamic Programming", 1972). A tree vanishes altogether.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

import numpy as np

from partita.compiler.search.model import (
    Bools,
    DeadEnd,
    Edge,
    Floats,
    Ints,
    Model,
    Star,
    price_of_sets,
)
from partita.compiler.search.stars import simplify_star

# A difference below this part of the larger cost is rounding, not preference.
_ROUNDING = 1e-14
_MOST_ENTRIES = 4_000_000  # to look at for minimizing one variable out


def reduce_model(model: Model) -> None:
    """Reduce a model in place until nothing more is found.

    Raises:
        DeadEnd: when no assignment is possible.
    """
    dirty = set(model.costs)
    worse = _Worse()
    while dirty:
        touched: set[int] = set()
        for name in list(model.stars):
            if dirty.intersection(model.members(model.stars[name])):
                touched |= simplify_star(model, name)
        dirty |= touched
        for variable in sorted(dirty):
            touched |= _eliminate(model, variable)
        for variable in sorted(dirty | touched):
            if variable in model.costs:
                touched |= _shrink(model, variable, worse)
        dirty = {variable for variable in touched if variable in model.costs}


def _shrink(model: Model, variable: int, worse: _Worse) -> set[int]:
    """Drop impossible and dominated choices; return the variables this concerns."""
    possible = possible_choices(model, variable)
    if not possible.any():
        raise DeadEnd(variable)
    before = len(possible)
    if not possible.all():
        model.restrict(variable, possible)
    if len(model.costs[variable]) > 1:
        keep = _undominated(model, variable, worse)
        if not keep.all():
            model.restrict(variable, keep)
    if len(model.costs[variable]) == before:
        return set()
    return {variable, *model.neighbours(variable)}


def possible_choices(model: Model, variable: int) -> Bools:
    """Return which choices no edge or star makes impossible."""
    possible = model.costs[variable] < inf
    for edge in model.edges[variable].values():
        table, own, _ = edge.seen_from(variable)
        if np.maximum.reduce(table, axis=None) == inf:
            possible &= (table.min(axis=1) < inf)[own]
    for name in model.stars_of[variable]:
        star = model.stars[name]
        if star.boxing.max() < inf:
            continue
        if variable in star.ports:
            port = star.ports[variable]
            best = price_of_sets(star.boxing, port.sets).min(axis=0)
            possible &= (best < inf)[port.classes]
        if variable == star.producer:
            for port in star.ports.values():
                best = price_of_sets(star.boxing, port.sets).min(axis=1)
                possible &= (best < inf)[star.made]
    return possible


def _undominated(model: Model, variable: int, worse: _Worse) -> Bools:
    """Return which choices to keep; of equal ones the first stays."""
    cost = model.costs[variable]
    worst = cost[:, None] - cost[None, :]  # how much worse a is than b, at most
    for edge in model.edges[variable].values():
        _, own, _ = edge.seen_from(variable)
        worst += _of_choices(worse.by_edge(edge, variable), own)
    for name in model.stars_of[variable]:
        star = model.stars[name]
        is_made = variable == star.producer
        own = star.made if is_made else star.ports[variable].classes
        worst += _of_choices(worse.by_star(star, variable), own)
    slack = _ROUNDING * np.abs(cost)
    dominates = worst <= slack[:, None] + slack[None, :]
    keep = np.ones(len(cost), dtype=np.bool_)
    if np.count_nonzero(dominates) == len(cost):
        return keep  # by its own costs each is as good as itself, and as no other
    np.fill_diagonal(dominates, False)
    for b in np.flatnonzero(dominates.any(axis=0))[::-1]:
        # a must be there still: two equal choices must not remove each other
        if (dominates[:, b] & keep).any():
            keep[b] = False
    return keep


def _of_choices(table: Floats, classes: Ints) -> Floats:
    """Return a table [class, class] by the choices that are of these classes."""
    return table.take(classes, axis=0).take(classes, axis=1)


@dataclass(frozen=True, slots=True)
class _Worse:
    """By how much a class is worse than another by one edge or star, at most.

    A table that changed is a new array, so what was found of one holds for it; it is
    kept, lest another gets its identity.
    """

    _known: dict[tuple[int, ...], tuple[object, Floats]] = field(
        default_factory=dict[tuple[int, ...], tuple[object, Floats]]
    )

    def by_edge(self, edge: Edge, variable: int) -> Floats:
        """Return it by the classes of an end."""
        key = id(edge.table), variable == edge.first
        if key not in self._known:
            worst = _largest_difference(edge.seen_from(variable).table)
            self._known[key] = edge.table, worst
        return self._known[key][1]

    def by_star(self, star: Star, variable: int) -> Floats:
        """Return it by the classes of who makes the tensor, or of one who wants it."""
        tables = (star.boxing, *[port.sets for port in star.ports.values()])
        key = (variable, *map(id, tables))
        if key not in self._known:
            is_made = variable == star.producer
            worst = _as_producer(star) if is_made else _as_consumer(star, variable)
            self._known[key] = tables, worst
        return self._known[key][1]


def _difference(left: Floats, right: Floats) -> Floats:
    """Return left - right, minus infinity where the right is impossible anyway."""
    if np.isfinite(right).all():
        return left - right
    impossible = np.isinf(right)
    return np.where(impossible, -inf, left - np.where(impossible, 0.0, right))


def _largest_difference(table: Floats) -> Floats:
    """Return, for classes a and b, the most by which row a exceeds row b."""
    columns = np.ascontiguousarray(table.T)  # the maximum is fastest along the first
    return _difference(columns[:, :, None], columns[:, None, :]).max(axis=0)


def _as_producer(star: Star) -> Floats:
    """Return how much more the boxings from row a than from row b can cost.

    The placements wanted are one set per port, so the difference is at most the sum
    of the ports' largest surplus; where no placement costs more from a, it is at
    most the difference of any one placement that is wanted.
    """
    difference = _difference(star.boxing[:, None, :], star.boxing[None, :, :])
    surplus = np.zeros(difference.shape[:2])
    saving = np.full(difference.shape[:2], inf)
    union = np.zeros(difference.shape[2], dtype=np.bool_)
    for port in star.ports.values():
        wanted = port.sets.any(axis=0)
        if not wanted.any():
            continue  # its choices that want something have just gone
        union |= wanted
        largest = difference[:, :, wanted].max(axis=2)
        most = int(port.sets.sum(axis=1).max())
        surplus += most * np.maximum(largest, 0.0)
        if port.sets.any(axis=1).all():
            saving = np.minimum(saving, largest)
    total = np.maximum(difference[:, :, union], 0.0).sum(axis=2)
    return np.where(surplus > 0.0, np.minimum(surplus, total), np.minimum(saving, 0.0))


def _as_consumer(star: Star, variable: int) -> Floats:
    """Return how much more wanting set a than set b can cost.

    At worst a is boxed for this variable alone, and b comes for free since another
    port wants it, if any other can.
    """
    sets = star.ports[variable].sets
    alone = np.ones(star.boxing.shape[1], dtype=np.bool_)
    for other, port in star.ports.items():
        if other != variable:
            alone &= ~port.sets.any(axis=0)
    full = price_of_sets(star.boxing, sets)
    least = price_of_sets(np.where(alone, star.boxing, 0.0), sets)
    difference = _difference(full[:, :, None], least[:, None, :])
    impossible = np.isinf(full)[:, None, :]
    if impossible.any():
        difference = np.where(impossible, -inf, difference)
    worst = difference.max(axis=0)
    np.fill_diagonal(worst, 0.0)
    return worst


def _eliminate(model: Model, variable: int) -> set[int]:
    """Minimize a variable out if that is cheap; return its former neighbours."""
    if variable not in model.costs:
        return set()
    touched = _fold_plain_edges(model, variable)
    edges = list(model.edges[variable].values())
    if model.stars_of[variable] or len(edges) > 2:
        return touched
    others = [edge.other(variable) for edge in edges]
    views = [edge.seen_from(variable) for edge in edges]
    cost = model.costs[variable]
    if len(edges) == 2:
        (one, own_one, other_one), (two, own_two, other_two) = views
        if one.shape[1] * two.shape[1] * len(cost) > _MOST_ENTRIES:
            return touched
        left = (one[own_one] + cost[:, None]).T
        table = (left[:, :, None] + two[own_two][None, :, :]).min(axis=1)
        model.remove_variable(variable)
        model.add_edge(others[0], others[1], table, other_one, other_two)
        return touched.union(others)
    model.remove_variable(variable)
    if edges:
        table, own, other = views[0]
        message = (table[own] + cost[:, None]).min(axis=0)
        model.costs[others[0]] = model.costs[others[0]] + message[other]
    elif cost.min() < inf:
        model.constant += float(cost.min())
    else:
        raise DeadEnd(variable)
    return touched.union(others)


def _fold_plain_edges(model: Model, variable: int) -> set[int]:
    """Turn edges that one end has no say in into costs of the other end."""
    touched: set[int] = set()
    for edge in list(model.edges[variable].values()):
        rows, columns = edge.table.shape
        if rows > 1 and columns > 1:
            continue
        at, price, classes = edge.first, edge.table[:, 0], edge.first_class
        if rows == 1:
            at, price, classes = edge.second, edge.table[0], edge.second_class
        model.costs[at] = model.costs[at] + price[classes]
        model.remove_edge(edge)
        touched.update((edge.first, edge.second))
    return touched
