"""Good assignments, cheaply: every variable in turn takes its best choice.

What is impossible costs very much here rather than infinitely much, so that a start
that breaks ties can still be led to one that does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from partita.compiler.search.model import (
    NOBODY,
    Bools,
    Floats,
    Ints,
    Model,
    View,
)

_MOST_ROUNDS = 50


class _Role(NamedTuple):
    """A variable's part in a star: producer (no classes of its own) or consumer."""

    name: int
    classes: Ints
    sets: Bools | None


class LocalSearch:
    """Coordinate descent on a model, which must not change meanwhile."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._impossible = 1e6 * (1e-30 + model.most_cost())
        self._variables = sorted(model.costs)
        self._views: dict[int, list[tuple[int, View]]] = {}
        for variable in self._variables:
            self._views[variable] = [
                (other, self._finite_view(edge.seen_from(variable)))
                for other, edge in model.edges[variable].items()
            ]
        self._boxing = {n: self._finite(s.boxing) for n, s in model.stars.items()}
        self._roles: dict[int, list[_Role]] = {v: [] for v in self._variables}
        for name, star in model.stars.items():
            if star.producer != NOBODY:
                self._roles[star.producer].append(_Role(name, star.made, None))
            for variable, port in star.ports.items():
                self._roles[variable].append(_Role(name, port.classes, port.sets))

    def _finite(self, values: Floats) -> Floats:
        return np.where(values < inf, values, self._impossible)

    def _finite_view(self, view: View) -> View:
        return View(self._finite(view.table), view.own, view.other)

    def improve(
        self, start: Mapping[int, int], order: Sequence[int] | None = None
    ) -> tuple[dict[int, int], float]:
        """Return a local optimum reached from ``start``, and its cost."""
        positions = dict(start)
        wanted = self._wanted(positions)
        pending = dict.fromkeys(self._variables if order is None else order)
        visits = _MOST_ROUNDS * len(pending)
        while pending and visits:
            visits -= 1
            variable = next(iter(pending))
            del pending[variable]
            cost = self._cost_at(variable, positions, wanted)
            best = int(cost.argmin())
            here = positions[variable]
            if not cost[best] < cost[here] * (1 - 1e-12):
                continue
            positions[variable] = best
            for role in self._roles[variable]:
                if role.sets is not None:
                    wanted[role.name] -= role.sets[role.classes[here]]
                    wanted[role.name] += role.sets[role.classes[best]]
            pending.update(dict.fromkeys(sorted(self._model.neighbours(variable))))
        return positions, self._model.cost_of(positions)

    def _wanted(self, positions: Mapping[int, int]) -> dict[int, Ints]:
        """Count, for every star, how many ports want each placement."""
        wanted: dict[int, Ints] = {}
        for name, star in self._model.stars.items():
            counts = np.zeros(star.boxing.shape[1], dtype=np.int64)
            for variable, port in star.ports.items():
                counts += port.sets[port.classes[positions[variable]]]
            wanted[name] = counts
        return wanted

    def _cost_at(
        self, variable: int, positions: Mapping[int, int], wanted: dict[int, Ints]
    ) -> Floats:
        """Return the cost of each choice, all other variables staying."""
        cost = self._finite(self._model.costs[variable])
        for other, view in self._views[variable]:
            cost += view.table[:, view.other[positions[other]]][view.own]
        for role in self._roles[variable]:
            boxing = self._boxing[role.name]
            counts = wanted[role.name]
            if role.sets is None:
                cost += boxing[:, counts > 0].sum(axis=1)[role.classes]
                continue
            star = self._model.stars[role.name]
            row = 0
            if star.producer != NOBODY:
                row = int(star.made[positions[star.producer]])
            others = counts - role.sets[role.classes[positions[variable]]]
            price = np.where(others > 0, 0.0, boxing[row])
            cost += (role.sets @ price)[role.classes]
        return cost
