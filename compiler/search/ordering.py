"""In which order to decide variables so that few of them matter at any time.

A decided variable matters while it has an edge to an undecided one, makes a tensor
with undecided consumers, or wants a tensor whose producer is undecided. A star with
some of its consumers decided matters by the placements they want.
"""

from __future__ import annotations

from math import log

from partita.compiler.search.model import NOBODY, Model


class _Frontier:
    """The decided variables, those of them that matter, and how much they do."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._weights = {v: log(len(cost)) for v, cost in model.costs.items()}
        self._near = {v: model.neighbours(v) for v in model.costs}
        self.decided: set[int] = set()
        self.mattering: set[int] = set()
        self.reachable: set[int] = set()

    def matters(self, variable: int, coming: int) -> bool:
        """Whether ``variable`` matters once ``coming`` is decided as well."""
        decided, model = self.decided, self._model
        for other in model.edges[variable]:
            if other != coming and other not in decided:
                return True
        for name in model.stars_of[variable]:
            star = model.stars[name]
            if variable != star.producer:
                producer = star.producer
                if producer not in (NOBODY, coming) and producer not in decided:
                    return True
            elif any(v != coming and v not in decided for v in star.ports):
                return True
        return False

    def change(self, coming: int) -> float:
        """Return by how much deciding ``coming`` changes the weight."""
        change = self._weights[coming] if self.matters(coming, coming) else 0.0
        for other in self._near[coming] & self.mattering:
            if not self.matters(other, coming):
                change -= self._weights[other]
        for name in self._model.stars_of[coming]:
            star = self._model.stars[name]
            if coming in star.ports:
                left = sum(v != coming and v not in self.decided for v in star.ports)
                here = log(1 + star.boxing.shape[1])
                if left == 0:
                    change -= here if len(star.ports) > 1 else 0.0
                elif left == len(star.ports) - 1:
                    change += here
        return change

    def decide(self, coming: int) -> None:
        """Take a variable in."""
        self.decided.add(coming)
        self.reachable.discard(coming)
        self.reachable |= self._near[coming] - self.decided
        for other in (*(self._near[coming] & self.mattering), coming):
            if self.matters(other, coming):
                self.mattering.add(other)
            else:
                self.mattering.discard(other)


def _greedy(model: Model, start: int) -> tuple[list[int], float]:
    frontier = _Frontier(model)
    order: list[int] = []
    weight = most = 0.0
    coming = start
    while True:
        weight += frontier.change(coming)
        most = max(most, weight)
        frontier.decide(coming)
        order.append(coming)
        if len(order) == len(model.costs):
            return order, most
        waiting = frontier.reachable or set(model.costs) - frontier.decided
        coming = min(waiting, key=lambda v: (frontier.change(v), v))


def frontier_order(model: Model, starts: int = 4) -> list[int]:
    """Return the best order found, greedily, from some variables of low degree."""
    by_degree = sorted(model.costs, key=lambda v: (len(model.neighbours(v)), v))
    step = max(1, len(by_degree) // 2 // starts)
    found = [_greedy(model, start) for start in by_degree[: step * starts : step]]
    return min(found, key=lambda item: item[1])[0]
