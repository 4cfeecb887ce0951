"""A plan whose small messages are sent together, within its memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from partita.compiler.collection import collection_paused
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.buckets import collective_totals
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import stage_documents
from partita.compiler.search.buckets import Buckets, Packing
from partita.compiler.search.turns import turned, with_turns
from partita.compiler.simulate.hidden import without
from partita.compiler.simulate.turn_items import TurnItems
from partita.whole_plans.recount import (
    one_after_another,
    with_figures,
    with_memory,
    with_seconds,
)

_PARTS = (1, 4, 16, 64)
"""Of what was asked for: how large buckets are tried to be."""

_FEWER = 1.1
"""How many times as long a step may be predicted to take, for fewer messages.

Where all is waited for: what a message takes a host, and the copies for one less, vary
more from one CPU to the other. Steps of eight linear layers in ZeRO-3, 5 messages in
place of 12, took 1.02 times as long on two gloo ranks, predicted .99 by figures that
were measured there; of the shipped ones, 5 in place of 19, 1.07.
"""


@collection_paused()
def with_buckets(plan: Plan, most_bytes: int) -> Plan:
    """Return the plan with buckets, and what its step takes then.

    They hold up to ``most_bytes`` and a tensor, less where the plan's memory limit asks
    for it; where not even small ones fit there are none. All that can goes into them,
    but where that makes the step much longer. On a machine that computes while messages
    pass, large buckets are ready late: smaller ones are tried as long as the step gets
    faster, and the size is taken, or none, that makes the fastest. Which messages start
    ahead and which are waited for late is chosen for each.
    """
    if len(plan.stages) == 1:
        items = TurnItems(plan)
        found = turned_with_buckets(with_turns(plan, items), most_bytes, items)
        return _counted(found, items)
    packings = [Packing.of(part) for part in stage_documents(plan)]
    plans: Iterable[Plan] = map(with_figures, _in_sizes(plan, most_bytes, packings))
    if load_hardware(plan.hardware).overlap:
        plans = _fastest_first(plan, plans)
    limit, most_s = plan.options.memory_bytes, _most_s(plan)
    quick = (p for p in plans if _seconds(p) <= most_s)
    fitting = (p for p in quick if limit is None or p.predicted.bytes <= limit)
    return next(fitting, plan)


def turned_with_buckets(alone: Plan, most_bytes: int, items: TurnItems) -> Plan:
    """Return ``with_buckets`` of one stage that has the turns of ``with_turns``.

    Without a memory limit it may not state what it holds, which takes a while to count.
    ``items`` are those of a plan that differs in its turns alone.
    """
    limit, packing = alone.options.memory_bytes, Packing.of(alone, items.alone)
    drafts: Iterable[Plan] = (
        _draft(one, items) for one in _in_sizes(alone, most_bytes, [packing])
    )
    if items.hardware.overlap:
        drafts = _fastest_first(alone, drafts)
    best: Plan | None = None
    for draft in drafts:
        if best is not None and _seconds(best) <= _most_s(draft):
            break
        found, fits = draft, True
        if limit is not None:
            fitting = with_turns(draft, items)
            found = with_memory(with_seconds(fitting, items), items)
            fits = found.predicted.bytes <= limit
        if fits and (best is None or _seconds(found) < _seconds(best)):
            best = found
    if best is None or _seconds(best) > _most_s(alone):
        return alone if limit is None else with_memory(alone, items)
    return best


def _counted(plan: Plan, items: TurnItems) -> Plan:
    """Return a plan of ``turned_with_buckets`` with what it holds."""
    is_counted = plan.options.memory_bytes is not None
    return plan if is_counted else with_memory(plan, items)


def _draft(plan: Plan, items: TurnItems) -> Plan:
    """Return the plan with the turns that it has without a limit, and their seconds."""
    found, hidden_s = turned(plan, items, None)
    apart = one_after_another(found)
    predicted = without(apart, hidden_s, found.microbatches)
    return replace(found, predicted=predicted)


def _in_sizes(
    plan: Plan, most_bytes: int, packings: Sequence[Packing]
) -> Iterator[Plan]:
    """Yield the plan in buckets of each size, the largest first, and the fewest.

    ``packings`` are those of its stages. On a machine that computes while messages pass
    they are those that pay.
    """
    known: set[Buckets] = set()
    has_overlap = bool(load_hardware(plan.hardware).overlap)
    ways = [Packing.paying] if has_overlap else [Packing.into, Packing.paying]
    for size, way in product((most_bytes // part for part in _PARTS), ways):
        buckets = tuple(keys for one in packings for keys in way(one, size))
        if buckets and buckets not in known:
            known.add(buckets)
            together = replace(plan, buckets=buckets, ahead={}, late={})
            yield replace(together, collectives=collective_totals(together))


def _fastest_first(plan: Plan, sizes: Iterable[Plan]) -> Iterator[Plan]:
    """Yield those that are no slower than ``plan``, without smaller ones than pay."""
    timed: list[Plan] = []
    has_limit = plan.options.memory_bytes is not None  # a small one may be what fits
    for one in sizes:
        timed.append(one)
        if not has_limit and len(timed) > 1 and _seconds(one) > _seconds(timed[-2]):
            break
    fast = (one for one in timed if _seconds(one) <= _seconds(plan))
    yield from sorted(fast, key=_seconds)


def _most_s(plan: Plan) -> float:
    """Return the seconds of a step up to which fewer messages are preferred to it."""
    has_overlap = bool(load_hardware(plan.hardware).overlap)
    return _seconds(plan) * (1 if has_overlap else _FEWER)


def _seconds(plan: Plan) -> float:
    return plan.predicted.seconds
