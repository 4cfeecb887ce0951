"""One search of a planner: the fastest plan on its mesh, within a memory limit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from partita.compiler.collection import collection_paused
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.by_axes import steps_of
from partita.compiler.search.decide import MOST_ALTERNATIVES, Found
from partita.compiler.search.holdings import find_holdings
from partita.compiler.search.keeping import keep
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.solver import Solution, solve
from partita.compiler.search.stage_cost import peak_bytes
from partita.compiler.search.wanted import ANY, Wanted
from partita.compiler.search.within_limit import Limited, lowered
from partita.one_mesh.decided import Decided
from partita.one_mesh.not_faster import NotFaster
from partita.one_mesh.planner import Planner
from partita.one_mesh.too_large import too_large

ALIKE = "equal blocks alike"
"""Says in a plan that it is compared with those alone whose equal blocks are alike."""

WITHIN = "within the memory limit"
"""Says in a plan that it is the fastest found among those that the limit allows."""

MOST_FITTINGS = 6
"""So many plans are made, of less and less memory, until one keeps to a limit."""

_ROUGHLY = 1.25  # what the search counts may be more than the plan does
_NEARLY = 1.01  # of a limit, what a plan may hold for others to be tried that were met


@dataclass
class Search:
    """One search of a planner, under its memory limit if there is one.

    A stage of a pipeline holds ``num_live`` microbatches at once. Of other choices than
    those taken a plan tells ``most_alternatives``. What is no faster under the limit
    than is ``wanted`` is not made a plan of. After ``run``, ``is_shown`` says whether
    nothing is better than what it found, or that nothing keeps to what is wanted.
    """

    planner: Planner
    clock: Clock
    wanted: Wanted = ANY
    most_alternatives: int = MOST_ALTERNATIVES
    num_live: int | None = None
    steps: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    found: tuple[Posed, Found] | None = None
    ways: list[str] = field(default_factory=list[str])
    is_folded: bool = False
    limited: LimitedSearch | None = None
    again: frozenset[str] = frozenset()
    fits: bool = True
    counted: int = 0
    bound_s: float | None = None
    memory_price: float | None = 0.0
    is_shown: bool = False
    started: float = field(default_factory=time.perf_counter)

    @collection_paused()
    def run(self) -> Plan:
        """Return the fastest plan found that keeps to the limit.

        Raises:
            NoSolution: when none was found.
            NotFaster: when it takes no less than is wanted.
        """
        limit, least = self.planner.limit, inf
        if limit is None or self._may_fit(limit):
            plan = self._plan(None)
            if limit is None or self._bytes(plan) <= limit:
                return plan
            least = self._bytes(plan)
        allowed = limit
        for _ in range(MOST_FITTINGS):
            plan = self._plan(allowed)
            if (num_bytes := self._bytes(plan)) <= limit:
                return plan
            least = min(least, num_bytes)
            if not self.fits:
                break
            if self.limited and self.found and num_bytes <= _NEARLY * limit:
                than, known_s = self.found[1].choices, plan.predicted.seconds
                for other in self.limited.others(allowed, than, known_s):
                    plan = self._plan(allowed, other)
                    if self._bytes(plan) <= limit:
                        return plan
            allowed = lowered(allowed, limit, self.counted, num_bytes)
        self.is_shown = self._is_refusal_shown
        state_bytes = 0 if self.limited is None else self.limited.state_bytes
        raise too_large(limit, int(least), state_bytes)

    @property
    def _is_refusal_shown(self) -> bool:
        """Whether it is shown that nothing that is wanted keeps to the limit."""
        if self.limited is None or self.bound_s is None or self.planner.limit is None:
            return False
        is_full = self.limited.state_bytes > self.planner.limit
        is_full |= self.limited.is_over_all(self.bound_s)
        return is_full or self.bound_s >= self.wanted.below_s

    @collection_paused()
    def uncounted(self) -> Plan:
        """Return the plan of ``run``, which no limit binds, as ``Planner.uncounted``.

        Raises:
            NoSolution: when none was found.
        """
        assert self.planner.limit is None
        return self.planner.uncounted(*self._decided(None, None))

    @collection_paused()
    def least_s(self) -> float:
        """Return seconds that no plan of the search can be faster than; 0 if unknown.

        It solves the problem without the limit, which ``run`` goes on from.
        """
        posed, free = self._fastest
        is_priced = any(pin.price_s is not None for pin in posed.pins.values())
        is_priced |= self.planner.options.fuse  # a group may take less than its calls
        if is_priced or len(steps_of(self.planner.mesh)) > 1:
            return 0.0
        return free.bound_s

    @property
    def free_s(self) -> float | None:
        """The seconds of the fastest plan without making it, where nothing is asked."""
        options = self.planner.options
        is_asked = options.memory is not None or options.recompute
        return None if is_asked else self._fastest[1].seconds

    @property
    def choices(self) -> tuple[int, ...]:
        """Those of the fastest plan without a limit, of several axes of the last."""
        return self._fastest[1].choices

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.perf_counter() - self.started

    @cached_property
    def _fastest(self) -> tuple[Posed, Solution]:
        """The problem, of several axes the last, and its fastest choices."""
        steps = len(steps_of(self.planner.mesh))
        found: list[tuple[Posed, Solution]] = []

        def choose(posed: Posed) -> tuple[int, ...]:
            found.append((posed, self._free(posed, steps)))
            return found[-1][1].choices

        self.planner.choose(choose)
        return found[-1]

    def _bytes(self, plan: Plan) -> int:
        """Return what a rank holds at most under a plan."""
        live = self.num_live
        return plan.predicted.bytes if live is None else peak_bytes(plan, live)

    def _may_fit(self, limit: int) -> bool:
        """Whether the fastest of all plans may keep to the limit, by a rough count."""
        (posed, free), live = self._fastest, self.num_live or 1
        held = find_holdings(posed, free.choices, posed.optimizer, num_live=live)
        return keep(held, ()).peak_bytes <= _ROUGHLY * limit

    def _plan(self, allowed: int | None, known: Limited | None = None) -> Plan:
        """Return the fastest plan that the search counts ``allowed`` bytes for.

        Where it is ``known`` what that is of, nothing is searched.
        """
        return self.planner.decide(*self._decided(allowed, known))

    def _decided(
        self, allowed: int | None, known: Limited | None
    ) -> tuple[Found, Posed]:
        """Return what the fastest plan is of, and the problem that it is of."""
        planner = self.planner
        steps = len(steps_of(planner.mesh))
        posed, last = self._fastest
        self.ways = ["axis by axis"] if steps > 1 else []
        if self.is_folded and allowed is None:
            self.ways.append(ALIKE)
        if allowed is not None:  # of many axes, the last is decided anew
            last = self._within(posed, last, allowed, known)
            below_s = self.wanted.below_s
            if below_s < inf and not (self.fits and last.seconds < below_s):
                self.is_shown = self._is_refusal_shown
                raise NotFaster(last.seconds if self.fits else None)
        asked = planner.options.recompute
        is_compared = not ("axis by axis" in self.ways or asked)
        self.is_shown = is_compared and last.status == "optimal"
        status = f"{last.status}, {ALIKE}" if ALIKE in self.ways else last.status
        result = SearchResult(
            ", ".join([last.solver, *self.ways]),
            status if is_compared else "not compared with all",
            last.gap if is_compared else None,
            self.seconds,
            memory_price=self.memory_price,
        )
        found = Found(
            last.choices,
            result,
            self.again,
            asked,
            most_alternatives=self.most_alternatives,
        )
        self.found = posed, found
        return found, posed

    @property
    def decided(self) -> Decided:
        """What the plan made last is of, for programs alike."""
        assert self.found is not None
        return Decided.of(self.steps, *self.found)

    def _free(self, posed: Posed, steps: int) -> Solution:
        """Return the fastest assignment, in half of the time where more is to come."""
        share = steps if self.planner.limit is None else 2 * steps
        self.is_folded |= posed.fold.has_classes
        left_s = max(self.clock.left_s, 0.01) / share
        found = solve(posed.problem, left_s, posed.fold)
        self.steps.append(tuple(found.choices))
        return found

    def _within(
        self, posed: Posed, free: Solution, allowed: int, known: Limited | None
    ) -> Solution:
        """Return the fastest assignment found that is counted as so many bytes."""
        if self.limited is None:
            live, rest = self.num_live or 1, (self.clock, self.wanted)
            self.limited = LimitedSearch(posed, free, posed.optimizer, *rest, live)
        found = known or self.limited.run(allowed)
        self.again, self.fits = found.keeping.again, found.fits
        self.counted = found.keeping.peak_bytes
        if found.choices != self.limited.free.choices or found.keeping.again:
            self.ways.append(WITHIN)
        if self.limited.fold.has_classes and ALIKE not in self.ways:
            self.ways.append(ALIKE)
        if self.bound_s is None:  # of the limit itself; less is allowed from now on
            self.bound_s = found.bound_s
            # without a price the bound is that of a plan without a limit
            self.memory_price = found.price or None
        return found.solution(self.bound_s)
