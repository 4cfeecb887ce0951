"""Parts of a model that share no edge and no star, and the search of one of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from partita.compiler.search.frontier import FrontierSearch
from partita.compiler.search.ilp import solve_ilp
from partita.compiler.search.local_search import LocalSearch
from partita.compiler.search.model import DeadEnd, Model
from partita.compiler.search.ordering import frontier_order
from partita.compiler.search.reduction import reduce_model
from partita.compiler.search.relaxation import Relaxation

# What gains no more than this part of the known cost is not searched for.
_NO_GAIN = 1e-9
OPTIMAL_GAP = 1e-6  # and so close a bound is called optimal
_MOST_SWEEPS = 200
_SWEEPS_BETWEEN_LOOKS = 10
_STALLED = 0.03  # of the gap, gained between two looks
_STATES = (300, 3_000, 30_000)  # of one pass after another
_GRACE_S = 10.0  # to find any assignment at all, once the time is over
_WORTH_A_RESTART = 0.2  # of the choices, found too dear


@dataclass(frozen=True, slots=True)
class Clock:
    """The time limit of a search."""

    deadline: float  # as time.perf_counter counts

    @classmethod
    def of(cls, seconds: float) -> Clock:
        """Return a clock that runs out after so many seconds."""
        return cls(time.perf_counter() + seconds)

    @property
    def left_s(self) -> float:
        """What is left, negative once it ran out."""
        return self.deadline - time.perf_counter()


def split(model: Model) -> list[Model]:
    """Return the connected parts of a model; each begins with nothing to undo."""
    parts: list[Model] = []
    seen: set[int] = set()
    for start in sorted(model.costs):
        if start in seen:
            continue
        part, stack = Model(), [start]
        seen.add(start)
        while stack:
            variable = stack.pop()
            part.costs[variable] = model.costs[variable]
            part.domains[variable] = model.domains[variable]
            part.edges[variable] = model.edges[variable]
            part.stars_of[variable] = model.stars_of[variable]
            for name in model.stars_of[variable]:
                part.stars[name] = model.stars[name]
            for other in sorted(model.neighbours(variable) - seen):
                seen.add(other)
                stack.append(other)
        parts.append(part)
    return parts


@dataclass(slots=True)
class PartSearch:
    """The search of one part: what is known so far, and how it goes on."""

    model: Model
    clock: Clock
    threads: int
    assignment: dict[int, int] | None = None
    cost: float = inf
    bound: float = -inf
    used_ilp: bool = False
    _start: dict[int, int] = field(default_factory=dict[int, int])  # for HiGHS

    def run(self) -> None:
        """Search until the gap is closed or the time is over."""
        try:
            while self._round():
                pass
        except DeadEnd:
            if self.assignment is None:
                raise
            self._raise_bound(inf)

    @property
    def is_optimal(self) -> bool:
        """Whether nothing noticeably better than what is known can exist."""
        return self.bound >= self.cost * (1 - OPTIMAL_GAP)

    @property
    def _is_closed(self) -> bool:
        return self.bound >= self.cost * (1 - 2 * _NO_GAIN)

    def _offer(self, positions: Mapping[int, int], cost: float) -> None:
        if cost < self.cost:
            model = self.model
            chosen = {v: int(model.domains[v][p]) for v, p in positions.items()}
            self.cost, self.assignment = cost, model.extend(chosen)

    def _raise_bound(self, bound: float) -> None:
        """Note a lower bound on what the present model holds.

        Only what is no better than a known assignment was ever taken from it.
        """
        least = min(bound, self.cost * (1 - _NO_GAIN))
        self.bound = max(self.bound, least)

    def _round(self) -> bool:
        """Reduce, bound, search and prune; whether another round is worth it."""
        model = self.model
        reduce_model(model)
        if not model.costs:
            self._offer({}, model.constant)
            self._raise_bound(model.constant)
            return False
        search = LocalSearch(model)
        first = {v: int(cost.argmin()) for v, cost in model.costs.items()}
        self._start, cost = search.improve(first)
        self._offer(self._start, cost)
        relaxation = Relaxation(model)
        self._sweep(relaxation, search)
        if self._is_closed or self._is_late():
            self._search_ilp_if_nothing_is_known(relaxation)
            return False
        if self._prune(relaxation):
            return True
        passes = FrontierSearch(model, relaxation, frontier_order(model))
        for most in _STATES:
            limit = self.cost * (1 - _NO_GAIN) - relaxation.bound
            passed = passes.run(limit, most, self._is_late)
            if passed.positions is not None:
                positions, cost = search.improve(passed.positions)
                self._start = positions
                self._offer(positions, cost)
            self._raise_bound(relaxation.bound + passed.least_open)
            if self._is_closed or self._is_late():
                return False
            if self._prune(relaxation):
                return True
        self._search_ilp(relaxation)
        return False

    def _is_late(self) -> bool:
        return self.clock.left_s <= 0

    def _sweep(self, relaxation: Relaxation, search: LocalSearch) -> None:
        """Raise the bound until little more is gained, trying assignments on the way."""
        before = relaxation.bound
        for sweep in range(1, _MOST_SWEEPS + 1):
            relaxation.sweep()
            if sweep % _SWEEPS_BETWEEN_LOOKS and not self._is_late():
                continue
            positions, cost = search.improve(relaxation.decode())
            if cost < self.cost:
                self._start = positions
                self._offer(positions, cost)
            self._raise_bound(relaxation.bound)
            gained = relaxation.bound - before
            if gained < _STALLED * (self.cost - relaxation.bound) or self._is_late():
                return
            before = relaxation.bound

    def _prune(self, relaxation: Relaxation) -> bool:
        """Drop the choices that are too dear, if they are many."""
        if self.cost == inf:
            return False
        gap = self.cost * (1 - _NO_GAIN) - relaxation.bound
        keeps = {v: s <= gap for v, s in relaxation.surpluses().items()}
        total = sum(len(keep) for keep in keeps.values())
        dear = total - sum(int(keep.sum()) for keep in keeps.values())
        if dear < _WORTH_A_RESTART * (total - len(keeps)):
            return False
        for variable, keep in keeps.items():
            if not keep.any():
                raise DeadEnd(variable)
            if not keep.all():
                self.model.restrict(variable, keep)
        return True

    def _search_ilp_if_nothing_is_known(self, relaxation: Relaxation) -> None:
        if self.assignment is None:
            self._search_ilp(relaxation)

    def _search_ilp(self, relaxation: Relaxation) -> None:
        self.used_ilp = True
        outcome = solve_ilp(
            self.model,
            relaxation,
            self._start,
            self.cost,
            max(self.clock.left_s, _GRACE_S if self.assignment is None else 0.0),
            self.threads,
        )
        if outcome.positions is not None:
            positions, cost = LocalSearch(self.model).improve(outcome.positions)
            self._offer(positions, cost)
        self._raise_bound(outcome.bound)
