"""A plan whose small messages are sent together, within its memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

from partita.compiler.collection import collection_paused
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.buckets import collective_totals
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import stage_documents
from partita.compiler.search.buckets import choose_buckets
from partita.recount import step_seconds, with_figures

_PARTS = (1, 4, 16, 64)
"""Of what was asked for: how large buckets are tried to be."""


@collection_paused()
def with_buckets(plan: Plan, most_bytes: int) -> Plan:
    """Return the plan with buckets that pay, and what its step takes then.

    They hold up to ``most_bytes`` and a tensor, less where the plan's memory limit asks
    for it; where not even small ones fit there are none. On a machine that computes
    while messages pass, large buckets are ready late: the size is taken, or none, that
    makes the fastest step.
    """
    limit = plan.options.memory_bytes
    plans = _in_sizes(plan, most_bytes)
    if load_hardware(plan.hardware).overlap:
        timed = [(step_seconds(one), one) for one in plans]
        timed = [(s, one) for s, one in timed if s <= plan.predicted.seconds]
        plans = (one for _, one in sorted(timed, key=itemgetter(0)))
    for one in plans:
        found = with_figures(one)
        if limit is None or found.predicted.bytes <= limit:
            return found
    return plan


def _in_sizes(plan: Plan, most_bytes: int) -> Iterator[Plan]:
    """Yield the plan in buckets of each size that pay, the largest first."""
    known: set[tuple[tuple[str, ...], ...]] = set()
    for part in _PARTS:
        buckets = _buckets(plan, most_bytes // part)
        if not buckets:
            return
        if buckets not in known:
            known.add(buckets)
            together = replace(plan, buckets=buckets)
            yield replace(together, collectives=collective_totals(together))


def _buckets(plan: Plan, most_bytes: int) -> tuple[tuple[str, ...], ...]:
    """Return the buckets of one size that pay."""
    parts = stage_documents(plan)
    return tuple(keys for part in parts for keys in choose_buckets(part, most_bytes))
