"""Plans whose small messages are sent together, and the search that reckons with it.

The search adds up boxings one by one, each with the latency of its messages: which of
them share a buffer is known only of a whole plan. Where latencies are much of the step
they are not what it should compare by, so it is done once more: gradients that leave
have each their part of a buffer's latency, and take the least that they can beside
computing. What is waited for is taken to share no buffer. Where that plan takes longer
in its buckets than it was searched by, as one does whose messages need several buffers,
a larger part is tried. Of these plans, in buckets, the fastest is taken.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf, sqrt

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
from partita.compiler.search.fold import Fold
from partita.compiler.search.parts import ROUGH, Clock
from partita.compiler.search.solver import Solution, solve
from partita.compiler.search.turns import with_turns
from partita.compiler.simulate.turn_items import TurnItems
from partita.one_mesh.planner import ALIKE, Planner
from partita.whole_plans.bucketed import turned_with_buckets
from partita.whole_plans.recount import with_memory

_MUCH = 0.01  # of a step's seconds
_KEPT = 1.02  # times what a plan was searched by, at most


@collection_paused()
def fastest_in_buckets(
    planner: Planner, plan: Plan, most_bytes: int, clock: Clock
) -> Plan:
    """Return the plan in buckets, or one that is faster so.

    Args:
        planner: of the plan's model and mesh.
        plan: the fastest of one stage whose messages are sent one by one, in turns.
        most_bytes: see ``with_buckets``.
        clock: what a second search may take.
    """
    found = _fastest(planner, plan, most_bytes, clock)
    is_counted = plan.options.memory_bytes is not None
    return found if is_counted else with_memory(found)


def _fastest(planner: Planner, plan: Plan, most_bytes: int, clock: Clock) -> Plan:
    """Return that plan; without a memory limit it may not state what it holds."""
    first = turned_with_buckets(plan, most_bytes)
    share = _share(plan, most_bytes)
    is_by_axes = len(steps_of(plan.mesh)) > 1
    if share is None or is_by_axes or plan.recompute:
        return first
    started = time.perf_counter()
    posed = planner.posed
    if any(pin.price_s is not None for pin in posed.pins.values()):
        return first  # a price is no time, and would have to be compared too
    drafts: dict[Sequence[int], Plan] = {}

    def take(found: Solution) -> float:
        """Take up the draft of a solution; return what its step takes."""
        if found.choices not in drafts:
            spent_s = plan.search.seconds + time.perf_counter() - started
            draft = _decided(planner, found, plan, spent_s)
            items = TurnItems(draft)
            turned = with_turns(draft, items)
            drafts[found.choices] = turned_with_buckets(turned, most_bytes, items)
        return drafts[found.choices].predicted.seconds

    hardware = load_hardware(plan.hardware)
    found = _solved(_light(planner, with_latency(hardware, share)), clock)
    if take(found) > _KEPT * found.seconds:
        take(_solved(_light(planner, with_latency(hardware, sqrt(share))), clock))
    limit = plan.options.memory_bytes or inf
    faster = [
        choices
        for choices, draft in drafts.items()
        if draft.predicted.seconds < first.predicted.seconds
        and draft.predicted.bytes <= limit
    ]
    if not faster:
        return first
    best = min(faster, key=lambda choices: drafts[choices].predicted.seconds)
    return planner.with_alternatives(drafts[best], best)


def _light(planner: Planner, light: Hardware) -> Fold:
    """Return the problem with gradients that leave as they are on another machine."""
    fold = planner.posed.fold
    if planner.captured.program.in_time.count > 1:
        light = replace(light, overlap=0.0)
    together = MessagesBeside.together(fold, light)
    return fold if together is None else together.fold


def _solved(fold: Fold, clock: Clock) -> Solution:
    """Return what is found in half of the time that is left: others may follow."""
    return solve(fold.problem, max(clock.left_s / 2, 0.01), fold, ROUGH)


def _decided(planner: Planner, found: Solution, first: Plan, spent_s: float) -> Plan:
    """Return a draft of the plan that was found."""
    alike = f", {ALIKE}" if planner.posed.fold.has_classes else ""
    result = SearchResult(
        f"{found.solver}, messages together",
        f"not shown to be optimal{alike}",
        None,
        spent_s,
        first.search.tried,
        memory_price=first.search.memory_price,
    )
    return planner.draft(Found(found.choices, result))


def with_latency(hardware: Hardware, share: float) -> Hardware:
    """Return a machine with a part of the latency of messages."""

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


def _share(document: Document, most_bytes: int) -> float | None:
    """Return a gradient's part of the latency of a buffer, as far as one can know.

    ``None`` where a message of its own for each gradient is not much of the step.
    """
    hardware, mesh = load_hardware(document.hardware), document.mesh
    sizes = [parameter.type.num_bytes for parameter in document.parameters.values()]
    kind = CollectiveKind.ALL_REDUCE
    axes = [axis for axis, size in enumerate(mesh.sizes) if size > 1]
    least_s = min((axis_seconds(kind, 0, mesh, a, hardware) for a in axes), default=0.0)
    if len(sizes) * least_s < _MUCH * document.predicted.seconds:
        return None
    return min(1.0, (1 + sum(sizes) / most_bytes) / len(sizes))
