"""Plans whose small messages are sent together, and the search that reckons with it.

The search adds up boxings one by one, each with the latency of its messages: which of
them share a buffer is known only of a whole plan. Where latencies are much of the step
they are not what it should compare by, so it is done once more: parameters that enter
and gradients that leave have each their part of a buffer's latency. What else is waited
for is taken to share no buffer.

So sent, a message is ready with the last of its buffer, and hides less. That search
takes it to hide nothing; the first search of a machine that computes while messages
pass takes all to be hidden that may be. Where they do not settle it, one more takes
some of each message to be waited for. Of these plans, in buckets, the fastest is taken.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

from partita.compiler.collection import collection_paused
from partita.compiler.cost.collectives import CollectiveKind, axis_seconds
from partita.compiler.hardware.links import CollectiveCost
from partita.compiler.hardware.profile import Hardware, load_hardware
from partita.compiler.plan.document import Document
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.beside import MessagesBeside
from partita.compiler.search.by_axes import steps_of
from partita.compiler.search.decide import Found
from partita.compiler.search.parts import OPTIMAL_GAP, ROUGH, Clock
from partita.compiler.search.solver import Solution, solve
from partita.compiler.search.turns import with_turns
from partita.compiler.simulate.turn_items import TurnItems
from partita.one_mesh.planner import Planner
from partita.one_mesh.search import ALIKE
from partita.whole_plans.beside_search import First
from partita.whole_plans.bucketed import turned_with_buckets
from partita.whole_plans.recount import with_memory

_MUCH = 0.01  # of a step's seconds
_AWAITED = 0.05  # of what may be hidden, in a search between the other two
_HARDLY = 1e-4  # of a step: who saves less by its own measure is not drafted
_OPEN = 0.1  # of a step, between the fastest plan and what bounds all


@collection_paused()
def fastest_together(
    planner: Planner, first: First, most_bytes: int, clock: Clock
) -> Plan:
    """Return the first plan in buckets, or one that is faster so.

    Args:
        planner: of the plan's model and mesh.
        first: that of ``BesideSearch.first``, in turns.
        most_bytes: of a bucket; without any, messages are sent one by one.
        clock: what further searches may take.
    """
    found, choices, items = _fastest(planner, first, most_bytes, clock)
    if choices is not None:
        found = planner.with_alternatives(found, choices)
    is_counted = found.options.memory_bytes is not None
    return found if is_counted else with_memory(found, items)


def _fastest(planner: Planner, first: First, most_bytes: int, clock: Clock) -> First:
    """Return that plan; without a memory limit it may not state what it holds."""
    plan = first.plan
    found = turned_with_buckets(plan, most_bytes, first.items or TurnItems(plan))
    in_buckets = first._replace(plan=found)
    is_by_axes = len(steps_of(plan.mesh)) > 1
    if is_by_axes or plan.recompute:
        return in_buckets
    if any(pin.price_s is not None for pin in planner.posed.pins.values()):
        return in_buckets  # a price is no time, and would have to be compared too
    compared = _Compared(planner, plan, most_bytes, clock, in_buckets)
    share = _share(plan, most_bytes) if most_bytes else 1.0
    is_beside = planner.limit is None and load_hardware(plan.hardware).overlap > 0.0
    is_late = _are_much(plan)
    gap = 1.0 if plan.search.gap is None else plan.search.gap
    if is_late and (is_beside or share < 1.0):
        compared.search(share, 1.0)
    # What buckets save of latency the bound of the first plan does not know.
    is_settled = gap <= (OPTIMAL_GAP if is_late else _MUCH)
    if is_beside and not (is_settled or compared.has_gained):
        compared.search(share, _AWAITED)
    least_s = (1 - gap) * _seconds(plan)
    is_open = _seconds(compared.best.plan) > least_s / (1 - _OPEN)
    if is_beside and is_open and not is_late:
        compared.search(share, 1.0)
    return compared.best


@dataclass
class _Compared:
    """Plans in buckets that are compared with the first.

    Attributes:
        planner: of all of them.
        plan: the first, its messages sent one by one.
        most_bytes: of a bucket.
        clock: what further searches may take.
        first: that in buckets.
    """

    planner: Planner
    plan: Plan
    most_bytes: int
    clock: Clock
    first: First
    others: list[First] = field(default_factory=list[First])  # each the fastest so far
    started: float = field(default_factory=time.perf_counter)

    @property
    def best(self) -> First:
        """The fastest, in buckets."""
        return self.others[-1] if self.others else self.first

    @property
    def has_gained(self) -> bool:
        """Whether a plan is noticeably faster than the first."""
        return _seconds(self.best.plan) < (1 - _MUCH) * _seconds(self.first.plan)

    def search(self, share: float, awaited: float) -> None:
        """Take up the plan found with parts of latency, and of what may be hidden."""
        light = with_latency(load_hardware(self.plan.hardware), share)
        fold = self.planner.posed.fold
        together = MessagesBeside.together(fold, light, awaited)
        if together is None:
            return
        left_s = max(self.clock.left_s / 2, 0.01)  # others may follow
        solution = solve(together.fold.problem, left_s, together.fold, ROUGH)
        known, least_s = self.best.choices, solution.seconds * (1 + _HARDLY)
        if known is not None and together.fold.cost_of(known) <= least_s:
            return  # by this measure hardly anything is gained
        draft = self._decided(solution)
        items = TurnItems(draft)
        found = turned_with_buckets(with_turns(draft, items), self.most_bytes, items)
        limit = self.plan.options.memory_bytes
        fits = limit is None or found.predicted.bytes <= limit
        if fits and _seconds(found) < _seconds(self.best.plan):
            self.others.append(First(found, solution.choices, items))

    def _decided(self, found: Solution) -> Plan:
        """Return a draft of the plan that was found."""
        alike = f", {ALIKE}" if self.planner.posed.fold.has_classes else ""
        first = self.plan.search
        result = SearchResult(
            f"{found.solver}, messages together",
            f"not shown to be optimal{alike}",
            None,
            first.seconds + time.perf_counter() - self.started,
            first.tried,
            memory_price=first.memory_price,
        )
        return self.planner.draft(Found(found.choices, result))


def with_latency(hardware: Hardware, share: float) -> Hardware:
    """Return a machine with a part of the latency of messages."""
    if share == 1.0:
        return hardware  # whose prices are known

    def light(cost: CollectiveCost) -> CollectiveCost:
        return replace(
            cost,
            alpha_s=share * cost.alpha_s,
            base_s=share * cost.base_s,
            others=tuple(map(light, cost.others)),
        )

    links = tuple(
        replace(link, costs={kind: light(cost) for kind, cost in link.costs.items()})
        for link in hardware.links
    )
    name = f"{hardware.name} with {share} of its latency"
    return replace(hardware, name=name, links=links)


def _seconds(plan: Plan) -> float:
    return plan.predicted.seconds


def _share(document: Document, most_bytes: int) -> float:
    """Return a gradient's part of the latency of a buffer, as far as one can know."""
    sizes = [parameter.type.num_bytes for parameter in document.parameters.values()]
    return min(1.0, (1 + sum(sizes) / most_bytes) / max(len(sizes), 1))


def _are_much(document: Document) -> bool:
    """Whether messages of its own for each gradient are much of the step."""
    hardware, mesh = load_hardware(document.hardware), document.mesh
    kind = CollectiveKind.ALL_REDUCE
    axes = [axis for axis, size in enumerate(mesh.sizes) if size > 1]
    least_s = min((axis_seconds(kind, 0, mesh, a, hardware) for a in axes), default=0.0)
    return len(document.parameters) * least_s >= _MUCH * document.predicted.seconds
