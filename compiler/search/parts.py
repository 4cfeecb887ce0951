"""Parts of a model that share no edge and no star, and the search of one of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from math import inf

import numpy as np

from partita.compiler.search.frontier import FrontierSearch
from partita.compiler.search.ilp import solve_ilp
from partita.compiler.search.local_search import LocalSearch
from partita.compiler.search.marginals import surpluses
from partita.compiler.search.model import DeadEnd, Model
from partita.compiler.search.ordering import frontier_order
from partita.compiler.search.reduction import reduce_model
from partita.compiler.search.relaxation import Relaxation

# What gains no more than this part of the known cost is not searched for.
_NO_GAIN = 1e-9
_LEAST_S = 0.1  # of a search that is begun once the time is over
OPTIMAL_GAP = 1e-6  # and so close a bound is called optimal

# How long to raise the bound. Parts of the gap are what two looks' sweeps gained.
_SWEEPS_BETWEEN_LOOKS = 5
_MOST_SWEEPS = 20
_NEAR = 0.02  # a gap, as part of the cost, at which most choices may be too dear
_MUCH_LESS = 0.8  # of the gap at the last look: when to look again at what is too dear
_SLOW = 0.03
_STALLED = 0.002  # ends it even if there is time


# When to begin anew: so small a part of the choices is left, unless the last pass
# ruled out so much of the gap that more room will do.
_WORTH_A_NEW_ROUND = 0.75
_NEARLY = 0.6
_WORTH_A_LAST_ROUND = 0.95  # once all passes failed

_GRACE_S = 10.0  # to find any assignment at all, once the time is over


@dataclass(frozen=True, slots=True)
class Effort:
    """How far a search goes that does not end by itself.

    Attributes:
        states: how many states one pass after another may have.
        threads: for HiGHS, which gets what all passes leave; with none it is asked
            only where nothing is known yet.
        gap: between what is known and the bound, as part of the cost, that is not
            worth closing.
    """

    states: tuple[int, ...]
    threads: int
    gap: float = 2 * _NO_GAIN


THREADS = 2  # for HiGHS

# Chosen, like the other numbers here, on joint graphs of two-layer transformers and
# ResNets on 1-D and 2-D meshes.
THOROUGH = Effort(
    (300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 600_000), THREADS
)
"""Up to the optimum, if there is time."""

ROUGH = Effort(THOROUGH.states[:2], 0, 0.001)
"""For what is only to be compared with others, by another measure than its cost.

It ends at the same point whatever the time, but for very large problems.
"""


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

    def share(self, part: float) -> Clock:
        """Return a clock of a part of what is left, or of little where it ran out."""
        return Clock.of(max(self.left_s, _LEAST_S) * part)


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
    """The search of one part, reduced: what is known so far, and how it goes on."""

    model: Model
    clock: Clock
    effort: Effort = THOROUGH
    assignment: dict[int, int] | None = None
    cost: float = inf
    bound: float = -inf
    used_ilp: bool = False

    def run(self) -> None:
        """Search until the gap is closed or the time is over."""
        try:
            while self._round():
                reduce_model(self.model)
        except DeadEnd:
            if self.assignment is None:
                raise
            self._raise_bound(inf)

    @property
    def is_optimal(self) -> bool:
        """Whether nothing noticeably better than what is known can exist."""
        return self.bound >= self.cost * (1 - OPTIMAL_GAP)

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
        """Bound, search and prune; whether to begin anew with what is left."""
        model = self.model
        if not model.costs:
            self._offer({}, model.constant)
            self._raise_bound(model.constant)
            return False
        num_choices = model.num_choices
        self._descend({v: int(cost.argmin()) for v, cost in model.costs.items()})
        relaxation = Relaxation(model)
        self._sweep(relaxation)
        order: list[int] = []
        pass_s = ruled_out = 0.0
        for most in self.effort.states:
            if self._is_done():
                break
            self._prune(relaxation)
            is_smaller = model.num_choices < _WORTH_A_NEW_ROUND * num_choices
            if is_smaller and ruled_out < _NEARLY:
                return True
            if not order:
                order = frontier_order(model)
                relaxation.follow(order)
            self._sweep(relaxation, pass_s)
            if self._is_done():
                break
            relaxation.lean()
            started = time.thread_time()
            search = FrontierSearch(model, relaxation, order)
            ruled_out = self._pass(search, relaxation, most)
            pass_s = time.thread_time() - started
        if not self._is_done():
            self._prune(relaxation)
            if model.num_choices < _WORTH_A_LAST_ROUND * num_choices:
                return True
        is_open = self.effort.threads > 0 and not self._is_done()
        if is_open or self.assignment is None:
            self._search_ilp(relaxation)
        return False

    def _is_done(self) -> bool:
        """Whether the gap is closed or the time is over."""
        is_closed = self.bound >= self.cost * (1 - self.effort.gap)
        return is_closed or self.clock.left_s <= 0

    def _pass(self, search: FrontierSearch, relaxation: Relaxation, most: int) -> float:
        """Search along the frontier; return which part of the gap that ruled out."""
        limit = self.cost * (1 - _NO_GAIN) - relaxation.bound
        passed = search.run(limit, most, self._is_late)
        if passed.positions is not None:
            self._descend(passed.positions)
        self._raise_bound(relaxation.bound + passed.least_open)
        return passed.least_open / max(self.cost - relaxation.bound, 1e-300)

    def _descend(self, start: Mapping[int, int]) -> None:
        """Note the local optimum that ``start`` leads to."""
        positions, cost = LocalSearch(self.model).improve(start)
        self._offer(positions, cost)

    def _is_late(self) -> bool:
        return self.clock.left_s <= 0

    def _sweep(self, relaxation: Relaxation, worth_s: float = 0.0) -> None:
        """Raise the bound until little more is gained; try assignments on the way.

        Args:
            relaxation: of the present model.
            worth_s: the processor time, however busy the machine is, for which to go on
                even if it is slow, unless it has stalled.
        """
        before = relaxation.bound
        pruned_at = inf
        started = time.thread_time()
        for sweep in count(_SWEEPS_BETWEEN_LOOKS, _SWEEPS_BETWEEN_LOOKS):
            relaxation.sweep(_SWEEPS_BETWEEN_LOOKS)
            self._descend(relaxation.decode())
            self._raise_bound(relaxation.bound)
            gap = self.cost - relaxation.bound
            if self._is_done():
                return
            if gap < _MUCH_LESS * pruned_at and gap <= _NEAR * self.cost:
                if self._is_small_soon(relaxation):
                    return
                pruned_at = gap
            if sweep % (2 * _SWEEPS_BETWEEN_LOOKS):
                continue
            gained = relaxation.bound - before
            is_slow = sweep >= _MOST_SWEEPS or gained < _SLOW * gap
            is_worth_it = time.thread_time() - started < worth_s
            if gained < _STALLED * gap:
                return
            if is_slow and not is_worth_it:
                return
            before = relaxation.bound

    def _is_small_soon(self, relaxation: Relaxation) -> bool:
        """Whether enough choices are too dear to begin anew; they are dropped."""
        num_choices = self.model.num_choices
        self._prune(relaxation)
        return self.model.num_choices < _WORTH_A_NEW_ROUND * num_choices

    def _prune(self, relaxation: Relaxation) -> None:
        """Drop the choices that are too dear."""
        gap = self.cost * (1 - _NO_GAIN) - relaxation.bound
        relaxation.restrict({v: s <= gap for v, s in surpluses(relaxation).items()})

    def _known_positions(self, relaxation: Relaxation) -> dict[int, int]:
        """Return the best assignment known, or another if it was pruned away."""
        positions: dict[int, int] = {}
        for variable, domain in self.model.domains.items():
            choice = -1 if self.assignment is None else self.assignment[variable]
            position = int(np.searchsorted(domain, choice))
            if position == len(domain) or domain[position] != choice:
                return LocalSearch(self.model).improve(relaxation.decode())[0]
            positions[variable] = position
        return positions

    def _search_ilp(self, relaxation: Relaxation) -> None:
        self.used_ilp = True
        outcome = solve_ilp(
            self.model,
            relaxation,
            self._known_positions(relaxation),
            self.cost,
            max(self.clock.left_s, _GRACE_S if self.assignment is None else 0.0),
            max(self.effort.threads, 1),
        )
        if outcome.positions is not None:
            self._descend(outcome.positions)
        self._raise_bound(outcome.bound)
