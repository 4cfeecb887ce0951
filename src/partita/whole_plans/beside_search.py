"""The search that reckons with messages that pass while ranks compute.

The search adds up what calls and boxings take one by one. On a machine that computes
while a message passes, those take less that nothing waits for: what brings gradients to
where they are stored, gathers of parameters that start ahead. By how much is known only
of a whole plan. So the search is done once more with such messages at the least that
they can take, which also bounds what any plan takes, and where that does not settle it
with a part of them that takes its time. Of all these plans the fastest is taken, as
their steps are simulated.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
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
from partita.compiler.search.parts import OPTIMAL_GAP, ROUGH, THOROUGH, Clock, Effort
from partita.compiler.search.solver import Solution, solve
from partita.compiler.search.turns import with_turns
from partita.compiler.simulate.turn_items import TurnItems
from partita.one_mesh.planner import ALIKE, WITHIN, Planner, Search
from partita.whole_plans.recount import with_memory

ONE_BY_ONE = "messages one by one"
"""Says in a plan that others were compared as if no message passed beside computing."""

BESIDE = "messages beside computing"
"""Says in a plan that the search that found it reckoned with what passes beside."""

_OPEN = 0.1
"""Of a step, between plan and bound: from then on it is searched a third time."""

_TIMES = 4
"""Under a memory limit it takes as long as the first, if so many times that is left."""


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

    @property
    def effort(self) -> Effort:
        """How far to search for what is fastest with messages one by one.

        It bounds nothing where they pass beside: it is one of those that are compared.
        """
        is_compared = self.messages is not None and self.planner.limit is None
        return ROUGH if is_compared else THOROUGH

    @cached_property
    def free(self) -> Solution | None:
        """What it finds without a memory limit."""
        if self.messages is None:
            return None
        fold = self.messages.fold
        return solve(fold.problem, max(self.clock.left_s, 0.01), fold=fold)

    def least_s(self, known_s: float) -> float:
        """Return seconds that no plan faster than a known one is faster than.

        Infinity where no message passes beside computing.
        """
        if self.messages is None or self.free is None:
            return inf
        return self.messages.least_below(self.free.bound_s, known_s)

    @property
    def most_hidden_s(self) -> float:
        """How much less than one by one the fastest plan may take, about."""
        if self.free is None:
            return 0.0
        plain_s = self.planner.posed.fold.cost_of(self.free.choices)
        return plain_s - self.free.seconds

    @collection_paused()
    def fastest(self, search: Search) -> Plan:
        """Return the plan of ``search``, or one faster as messages pass beside.

        Raises:
            NoSolution, NotFaster: as ``search`` does.
        """
        messages, free, limit = self.messages, self.free, self.planner.limit
        if messages is None or free is None or self.planner.options.recompute:
            return _counted(search.run())
        if limit is None:
            return with_memory(self._best(search, free, messages))
        plan = _counted(search.run())
        return self._within(plan, limit, free, messages)

    @collection_paused()
    def draft(self, search: Search) -> Plan:
        """Return ``fastest``; without a memory limit it may not state what it holds.

        Raises:
            NoSolution, NotFaster: as ``search`` does.
        """
        messages, free, planner = self.messages, self.free, self.planner
        is_free = planner.limit is None and not planner.options.recompute
        if messages is None or free is None or not is_free:
            return self.fastest(search)
        return self._best(search, free, messages)

    def _best(self, search: Search, free: Solution, messages: MessagesBeside) -> Plan:
        """Return the fastest of the drafts, with alternatives."""
        drafts = self._drafts(search, free, messages)
        plan, choices = min(drafts, key=lambda draft: draft.plan.predicted.seconds)
        return self.planner.with_alternatives(plan, choices)

    def _drafts(
        self, search: Search, free: Solution, messages: MessagesBeside
    ) -> list[_Draft]:
        """Return what is compared, in the order in which it is to be preferred."""
        least_s = messages.least_of(search.choices)
        others: list[_Draft] = []
        if messages.fold.cost_of(search.choices) > free.seconds * (1 + OPTIMAL_GAP):
            others.append(self._draft(free, search, messages, free.bound_s))
            if self.planner.options.fuse:
                least_s = 0.0  # a group may take less than its calls
        if not others or others[0].plan.predicted.seconds > least_s:
            plan = with_turns(search.draft())
            if self._is_least(plan):
                return [_Draft(plan, search.choices)]
            others.insert(0, _Draft(_one_by_one(plan), search.choices))
        seconds = min(draft.plan.predicted.seconds for draft in others)
        if seconds * (1 - _OPEN) > self.least_s(seconds):
            fold = messages.between(_left(others[-1].plan))
            found = solve(fold.problem, max(self.clock.left_s / 2, 0.01), fold, ROUGH)
            if found.choices not in (free.choices, search.choices):
                others.append(self._draft(found, search, messages, free.bound_s))
        return others

    def _draft(
        self,
        found: Solution,
        search: Search,
        messages: MessagesBeside,
        bound_s: float,
    ) -> _Draft:
        """Return the draft of an assignment, with the gap to what bounds all."""
        result = self._result(found.solver, search.seconds, messages.fold)
        draft = self.planner.draft(Found(found.choices, result))
        return _Draft(self._with_gap(with_turns(draft), bound_s), found.choices)

    def _is_least(self, plan: Plan) -> bool:
        """Whether no plan is noticeably faster than this one."""
        seconds = plan.predicted.seconds
        return seconds <= self.least_s(seconds) * (1 + OPTIMAL_GAP)

    def _within(
        self, plan: Plan, limit: int, free: Solution, messages: MessagesBeside
    ) -> Plan:
        """Return ``plan``, or a faster one that keeps to the memory limit too."""
        if self._is_least(plan):
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
        seconds = other.predicted.seconds
        if other.predicted.bytes > limit or seconds >= plan.predicted.seconds:
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


class _Draft(NamedTuple):
    """A plan that is compared with others, and the choices that it is of."""

    plan: Plan
    choices: Sequence[int]


def _one_by_one(plan: Plan) -> Plan:
    """Return the plan, which says that others were compared so."""
    status = f"{plan.search.status}, {ONE_BY_ONE}"
    return replace(plan, search=replace(plan.search, status=status))


def _counted(plan: Plan) -> Plan:
    """Return the plan with its turns, and what it holds in them."""
    items = TurnItems(plan)
    found = with_turns(plan, items)
    return with_memory(found, items) if found.ahead or found.late else found


def _left(plan: Plan) -> float:
    """Return what part of a plan's messages finds no computing to pass beside."""
    parts, hidden = plan.predicted.seconds_by_part, plan.predicted.hidden_by_part
    left_s = sum(s for part, s in parts.items() if part.startswith("communication"))
    return left_s / (left_s + sum(hidden.values())) if left_s else 0.0
