"""The search that reckons with messages that pass while ranks compute.

The search adds up what calls and boxings take one by one. On a machine that computes
while a message passes, those take less that nothing waits for: what brings gradients to
where they are stored, gathers of parameters that start ahead. By how much is known only
of a whole plan. So there they are searched at the least that they can take, which also
bounds what any plan takes. Under a memory limit the search one by one follows unless
that is settled, and the faster of the two plans is taken, as their steps are simulated;
without one the plan is the first of those that ``fastest_together`` compares.
"""

from __future__ import annotations

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
from partita.compiler.search.parts import OPTIMAL_GAP, ROUGH, Clock
from partita.compiler.search.solver import Solution, solve
from partita.compiler.search.turns import with_turns
from partita.compiler.search.wanted import ANY, Wanted
from partita.compiler.search.within_limit import Limited, lowered
from partita.compiler.simulate.turn_items import TurnItems
from partita.one_mesh.not_faster import NotFaster
from partita.one_mesh.planner import Planner
from partita.one_mesh.search import ALIKE, MOST_FITTINGS, WITHIN, Search
from partita.one_mesh.too_large import too_large
from partita.whole_plans.recount import with_memory

ONE_BY_ONE = "messages one by one"
"""Says in a plan that others were compared as if no message passed beside computing."""

BESIDE = "messages beside computing"
"""Says in a plan that the search that found it reckoned with what passes beside."""

_SHARE = 0.5  # of the time that is left, under a limit; the rest is for the other


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
    """That search of one model on one mesh.

    Attributes:
        planner: of it, and of the search one by one.
        clock: when to end.
        known_s: under a memory limit, no plan is made that takes more.
    """

    planner: Planner
    clock: Clock
    known_s: float = inf

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

    @cached_property
    def limited(self) -> LimitedSearch | None:
        """Itself under a memory limit; ``None`` where all state is over that."""
        limit, messages, free = self.planner.limit, self.messages, self.free
        options, wanted = self.planner.options, ANY
        if limit is None or messages is None or free is None or options.recompute:
            return None
        if self.known_s < inf and not options.fuse:  # a group may take less than calls
            wanted = Wanted(messages.most_below(self.known_s))
        light = replace(self.planner.posed, problem=messages.fold.problem)
        clock = Clock.of(_SHARE * self.clock.left_s)
        found = LimitedSearch(light, free, light.optimizer, clock, wanted)
        found.fold = messages.fold
        return None if found.state_bytes > limit else found

    def may_save(self, search: Search) -> bool:
        """Whether it may be of use to hold less, as more microbatches do.

        That is where the limit made a difference to what was searched, ``search``
        where no message passes beside computing, and is not below all state.
        """
        limited = self.limited or search.limited
        if limited is None or self.planner.limit is None:
            return False
        return bool(limited.moments) and limited.state_bytes <= self.planner.limit

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

        Without a memory limit it may not state what it holds.

        Raises:
            NoSolution, NotFaster: as ``search`` does.
        """
        messages, free, planner = self.messages, self.free, self.planner
        if planner.limit is not None:
            if self.limited is None:
                return First(_counted(search.run()))
            return self._within(search, self.limited)
        if messages is None or free is None or planner.options.recompute:
            return _in_turns(search.uncounted())
        result = self._result(free.solver, search.seconds, messages.fold, BESIDE)
        return self._with_gap(self._drafted(Found(free.choices, result)), free.bound_s)

    def _within(self, search: Search, limited: LimitedSearch) -> First:
        """Return the faster of the plans of both searches that keep to the limit."""
        found, bound_s = self._fitting(search, limited)
        if found is None:
            return First(_one_by_one(_counted(search.run())))
        found = self._with_gap(found, bound_s)
        gap, seconds = found.plan.search.gap, found.plan.predicted.seconds
        if (gap is not None and gap <= OPTIMAL_GAP) or self.clock.left_s <= 0:
            return found
        try:
            alone = self._alone(limited, seconds)
            other, _ = self._fitting(search, alone, seconds)
        except NotFaster:
            return found
        if other is None or other.plan.predicted.seconds >= seconds:
            return found
        other = self._with_gap(other, bound_s)
        return other._replace(plan=_one_by_one(other.plan))

    def _drafted(self, found: Found) -> First:
        """Return what was found as a plan in turns."""
        return _in_turns(self.planner.draft(found), found.choices)

    def _alone(self, limited: LimitedSearch, seconds: float) -> LimitedSearch:
        """Return the search one by one, roughly: for what may be faster than a plan."""
        posed = self.planner.posed
        free_s = max(self.clock.left_s / 2, 0.01)
        free = solve(posed.problem, free_s, posed.fold, ROUGH)
        below_s = min(seconds, self.known_s) + self.most_hidden_s
        wanted = Wanted(below_s, is_rough=True)
        short = limited.moments[:1]  # where memory is in either
        whole = posed, free, posed.optimizer, self.clock, wanted
        return LimitedSearch(*whole, moments=short)

    def _fitting(
        self,
        search: Search,
        limited: LimitedSearch,
        known_s: float = inf,
    ) -> tuple[First | None, float]:
        """Return a plan that keeps to the limit, if there is one, and a bound.

        Of what a search meets one by one it is that which takes least beside messages,
        if that is less than is known.

        Raises:
            NoSolution: when nothing that was found is near the limit.
            NotFaster: when it takes no less than is wanted.
        """
        limit = allowed = self.planner.limit
        assert allowed is not None
        assert limit is not None
        below_s, bound_s = limited.wanted.below_s, limited.free.bound_s
        is_beside, price = limited is self.limited, None
        for number in range(MOST_FITTINGS):
            found = limited.run(allowed)
            if below_s < inf and not (found.fits and found.seconds < below_s):
                raise NotFaster(found.seconds if found.fits else None)
            if not found.fits:
                if limited.is_far(found, limit):  # one by one it holds about as much
                    least = self._kept(search, limited, found).plan.predicted.bytes
                    raise too_large(limit, least, limited.state_bytes)
                break
            if not number:  # of the limit itself; less is allowed from now on
                bound_s = max(bound_s, found.bound_s)
                price = found.price or None if limited.moments else 0.0
            if not is_beside:
                found = min([found, *limited.fitting(allowed)], key=self._seconds)
                if self._seconds(found) >= known_s:
                    raise NotFaster(self._seconds(found))
            made = self._kept(search, limited, found, price)
            if (num_bytes := made.plan.predicted.bytes) <= limit:
                return made, bound_s
            allowed = lowered(allowed, limit, found.keeping.peak_bytes, num_bytes)
        return None, bound_s

    def _kept(
        self,
        search: Search,
        limited: LimitedSearch,
        found: Limited,
        price: float | None = None,
    ) -> First:
        """Return what was found under a limit as a plan that says what it holds."""
        assert self.messages is not None
        ways = [
            *([BESIDE] if limited is self.limited else ()),
            *([WITHIN] if limited.moments else ()),
        ]
        fold, seconds = self.messages.fold, search.seconds
        result = self._result(found.solver, seconds, fold, *ways)
        result = replace(result, memory_price=price)
        made = self._drafted(Found(found.choices, result, found.keeping.again))
        return made._replace(plan=with_memory(made.plan, made.items))

    def _seconds(self, found: Limited) -> float:
        """Return what is found takes beside messages, and what is made again."""
        assert self.messages is not None
        return self.messages.fold.cost_of(found.choices) + found.keeping.seconds

    def _result(
        self, solver: str, seconds: float, fold: Fold, *ways: str
    ) -> SearchResult:
        ways = (solver, *ways, *([ALIKE] if fold.has_classes else []))
        return SearchResult(", ".join(ways), "not shown to be optimal", None, seconds)

    def _with_gap(self, first: First, bound_s: float) -> First:
        """Return the plan with how far it is from what no plan is faster than.

        ``bound_s`` is what no assignment is cheaper than.
        """
        assert self.messages is not None
        plan, seconds = first.plan, first.plan.predicted.seconds
        gap = max(0.0, 1 - self.messages.least_below(bound_s, seconds) / seconds)
        return first._replace(plan=replace(plan, search=replace(plan.search, gap=gap)))


def _in_turns(draft: Plan, choices: Sequence[int] | None = None) -> First:
    """Return a draft in its turns; it need not state what it holds."""
    items = TurnItems(draft)
    return First(with_turns(draft, items), choices, items)


def _one_by_one(plan: Plan) -> Plan:
    """Return the plan, which says that others were compared so."""
    status = f"{plan.search.status}, {ONE_BY_ONE}"
    return replace(plan, search=replace(plan.search, status=status))


def _counted(plan: Plan) -> Plan:
    """Return the plan with its turns, and what it holds in them."""
    items = TurnItems(plan)
    found = with_turns(plan, items)
    return with_memory(found, items) if found.ahead or found.late else found
