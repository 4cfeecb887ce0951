"""Make stars smaller, exactly: toward edges, which everything else handles better.

* A port with one class wants its placements in any case: the producer pays for them,
  and they are free to the others.
* A column that no boxing has to pay for, or nobody wants, says nothing.
* A port that shares none of its columns is an edge of its own.
* A star of two variables is an edge; a star of one is a cost.
"""

from __future__ import annotations

from math import inf

import numpy as np

from partita.compiler.search.model import (
    NOBODY,
    Bools,
    DeadEnd,
    Floats,
    Model,
    Star,
    price_of_sets,
)


def simplify_star(model: Model, name: int) -> set[int]:
    """Reduce one star as far as possible; return the variables it touched."""
    star = model.stars[name]
    before = (len(star.ports), star.boxing.shape)
    members = set(model.members(star))
    if star.producer != NOBODY and len(star.boxing) == 1:
        model.stars_of[star.producer].discard(name)
        star.producer = NOBODY
    _pay_what_is_certain(model, name, star)
    _drop_idle_columns(star)
    _move_private_ports(model, name, star)
    if len(star.ports) + (star.producer != NOBODY) <= 2:
        _dissolve(model, name, star)
        return members
    _drop_idle_columns(star)
    return members if before != (len(star.ports), star.boxing.shape) else set()


def _pay(model: Model, star: Star, variable: int, price: Floats) -> None:
    """Charge the producer what ``variable`` wants in any case, per made class."""
    if price.min() == inf:
        raise DeadEnd(variable)
    if star.producer == NOBODY:
        model.constant += float(price[0])
    else:
        # A new array: views of the old one may be remembered elsewhere.
        model.costs[star.producer] = model.costs[star.producer] + price[star.made]


def _pay_what_is_certain(model: Model, name: int, star: Star) -> None:
    for variable in [v for v, port in star.ports.items() if len(port.sets) == 1]:
        certain = star.ports.pop(variable).sets[0]
        model.stars_of[variable].discard(name)
        _pay(model, star, variable, star.boxing[:, certain].sum(axis=1))
        star.boxing = star.boxing.copy()
        star.boxing[:, certain] = 0.0


def _drop_idle_columns(star: Star) -> None:
    wanted: Bools = np.zeros(star.boxing.shape[1], dtype=np.bool_)
    for port in star.ports.values():
        wanted |= port.sets.any(axis=0)
    keep = wanted & (star.boxing != 0.0).any(axis=0)
    if keep.all():
        return
    star.boxing = star.boxing[:, keep]
    for port in star.ports.values():
        if not keep.any():  # np.unique knows no rows without columns
            port.sets = np.zeros((1, 0), dtype=np.bool_)
            port.classes = np.zeros_like(port.classes)
            continue
        sets, inverse = np.unique(port.sets[:, keep], axis=0, return_inverse=True)
        port.sets = sets
        port.classes = inverse.reshape(-1)[port.classes]


def _move_private_ports(model: Model, name: int, star: Star) -> None:
    if not star.ports:
        return
    takers = sum(port.sets.any(axis=0).astype(np.int64) for port in star.ports.values())
    shared = np.asarray(takers) > 1
    for variable, port in list(star.ports.items()):
        if port.sets[:, shared].any():
            continue
        del star.ports[variable]
        model.stars_of[variable].discard(name)
        table = price_of_sets(star.boxing, port.sets)
        if star.producer == NOBODY:
            model.costs[variable] = model.costs[variable] + table[0, port.classes]
        elif table.any():
            model.add_edge(star.producer, variable, table, star.made, port.classes)


def _dissolve(model: Model, name: int, star: Star) -> None:
    """Turn a star of at most two variables into an edge or a cost."""
    for variable in model.members(star):
        model.stars_of[variable].discard(name)
    del model.stars[name]
    if not star.ports:
        return
    (first, left), *rest = star.ports.items()
    if star.producer != NOBODY:
        table = price_of_sets(star.boxing, left.sets)
        model.add_edge(star.producer, first, table, star.made, left.classes)
    elif not rest:
        price = price_of_sets(star.boxing, left.sets)[0]
        model.costs[first] = model.costs[first] + price[left.classes]
    else:
        ((second, right),) = rest
        unions = left.sets[:, None, :] | right.sets[None, :, :]
        table = np.where(unions, star.boxing[0], 0.0).sum(axis=2)
        model.add_edge(first, second, table, left.classes, right.classes)
