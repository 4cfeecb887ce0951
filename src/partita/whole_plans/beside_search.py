"""The search that reckons with messages that pass while ranks compute.

The search adds up what calls and boxings take one by one. On a machine that computes
while a message passes, those take less that nothing waits for: what brings gradients to
where they are stored, gathers of parameters that start ahead. By how much is known only
of a whole plan. So there they are searched at the least that they can take, which also
bounds what any plan takes. Under a memory limit that is a second search, and the faster
of the two plans is taken, as their steps are simulated; without one the plan is the
first of those that ``fastest_together`` compares.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from partita.compiler.collection import collection_paused
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.beside import MessagesBeside
from partita.compiler.search.by_axes import steps_of
from partita.compiler.search.decide import Found
from partita.compiler.search.fold import Fold
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import OPTIMAL_GAP, Clock
from partita.compiler.search.solver import Solution, solve
from partita.compiler.search.turns import with_turns
from partita.compiler.simulate.turn_items import TurnItems
from partita.one_mesh.planner import ALIKE, WITHIN, Planner, Search
from partita.whole_plans.recount import with_memory

ONE_BY_ONE = "messages one by one"
"""Says in a plan that others were compared as if no message passed beside computing."""

BESIDE = "messages beside computing"
"""Says in a plan that the search that found it reckoned with what passes beside."""

_TIMES = 4
"""Under a memory limit it takes as long as the first, if so many times that is left."""


class First(NamedTuple):
    """A plan that others are to be compared with.

    ``choices`` are what it is of, where it does not tell what else its nodes could have
    been. ``items`` are those of a plan that differs in its turns and buckets alone,
    where they are known.
    """

    plan: Plan
    choices: Sequence[int] | None = None
    items: TurnItems | None = None


@dataclass(frozen=True)
class BesideSearch:
    """The second search of one model on one mesh.

    Attributes:
        planner: of both.
        clock: when to end.
    """

    planner: Planner
    clock: Clock

    @cached_property
    def messages(self) -> MessagesBeside | None:
        """The problem; ``None`` where nothing passes beside computing."""
        planner = self.planner
        hardware = load_hardware(planner.options.hardware)
        is_whole = len(steps_of(planner.mesh)) == 1
        if not (hardware.overlap and is_whole and planner.mesh.size > 1):
            return None
        if any(pin.price_s is not None for pin in planner.posed.pins.values()):
            return None  # a price is no time, and would have to be compared too
        return MessagesBeside.of(planner.posed.fold, hardware)

    @cached_property
    def free(self) -> Solution | None:
        """What it finds without a memory limit, in half of the time: more follows."""
        if self.messages is None:
            return None
        fold = self.messages.fold
        return solve(fold.problem, max(self.clock.left_s / 2, 0.01), fold=fold)

    def least_s(self, search: Search, known_s: float) -> float:
        """Return seconds that no plan faster than a known one is faster than.

        ``search`` says it where no message passes beside computing.
        """
        if self.messages is None or self.free is None:
            return search.least_s()
        if self.planner.options.fuse:
            return 0.0  # a group may take less than its calls
        return self.messages.least_below(self.free.bound_s, known_s)

    def free_s(self, search: Search) -> float | None:
        """Return the seconds of the fastest assignment, where nothing is asked of it.

        ``search`` says it where no message passes beside computing.
        """
        is_asked = self.planner.limit is not None or self.planner.options.recompute
        if self.free is None or is_asked:
            return search.free_s
        return self.free.seconds

    @property
    def most_hidden_s(self) -> float:
        """How much less than one by one the fastest plan may take, about."""
        if self.free is None:
            return 0.0
        plain_s = self.planner.posed.fold.cost_of(self.free.choices)
        return plain_s - self.free.seconds

    @collection_paused()
    def first(self, search: Search) -> First:
        """Return the plan of ``search``, or one that reckons with such messages.

        One of those may not state what it holds, unless there is a memory limit.

        Raises:
            NoSolution, NotFaster: as ``search`` does.
        """
        messages, free, planner = self.messages, self.free, self.planner
        if messages is None or free is None or planner.options.recompute:
            return First(_counted(search.run()))
        if planner.limit is not None:
            plan = _counted(search.run())
            return First(self._within(plan, planner.limit, free, messages))
        result = self._result(free.solver, search.seconds, messages.fold)
        draft = planner.draft(Found(free.choices, result))
        items = TurnItems(draft)
        plan = self._with_gap(with_turns(draft, items), free.bound_s)
        return First(plan, free.choices, items)

    def _within(
        self, plan: Plan, limit: int, free: Solution, messages: MessagesBeside
    ) -> Plan:
        """Return ``plan``, or a faster one that keeps to the memory limit too."""
        seconds = plan.predicted.seconds
        if seconds <= messages.least_below(free.bound_s, seconds) * (1 + OPTIMAL_GAP):
            return plan
        first_s = plan.search.seconds
        if self.clock.left_s < _TIMES * first_s:
            return _one_by_one(plan)
        started = time.perf_counter()
        light = replace(self.planner.posed, problem=messages.fold.problem)
        optimizer = self.planner.options.optimizer
        limited = LimitedSearch(light, free, optimizer, Clock.of(first_s))
        limited.fold = messages.fold
        found = limited.run(limit)
        spent_s = first_s + time.perf_counter() - started
        result = self._result(free.solver, spent_s, messages.fold, WITHIN)
        found_again = Found(found.choices, result, found.keeping.again)
        other = _counted(self.planner.decide(found_again))
        if other.predicted.bytes > limit or other.predicted.seconds >= seconds:
            return _one_by_one(plan)
        return self._with_gap(other, max(free.bound_s, found.bound_s))

    def _result(
        self, solver: str, seconds: float, fold: Fold, *ways: str
    ) -> SearchResult:
        ways = (solver, BESIDE, *ways, *([ALIKE] if fold.has_classes else []))
        return SearchResult(", ".join(ways), "not shown to be optimal", None, seconds)

    def _with_gap(self, plan: Plan, bound_s: float) -> Plan:
        """Return the plan with how far it is from what no plan is faster than.

        ``bound_s`` is what no assignment is cheaper than.
        """
        assert self.messages is not None
        seconds = plan.predicted.seconds
        gap = max(0.0, 1 - self.messages.least_below(bound_s, seconds) / seconds)
        return replace(plan, search=replace(plan.search, gap=gap))


def _one_by_one(plan: Plan) -> Plan:
    """Return the plan, which says that others were compared so."""
    status = f"{plan.search.status}, {ONE_BY_ONE}"
    return replace(plan, search=replace(plan.search, status=status))


def _counted(plan: Plan) -> Plan:
    """Return the plan with its turns, and what it holds in them."""
    items = TurnItems(plan)
    found = with_turns(plan, items)
    return with_memory(found, items) if found.ahead or found.late else found
