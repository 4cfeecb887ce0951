"""A plan whose small messages are sent together, within its memory."""

from __future__ import annotations

from dataclasses import replace

from partita.compiler.collection import collection_paused
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.buckets import collective_totals
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import stage_documents
from partita.compiler.search.buckets import choose_buckets
from partita.recount import with_figures

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
    has_overlap = load_hardware(plan.hardware).overlap > 0
    fastest: Plan | None = None
    known: set[tuple[tuple[str, ...], ...]] = set()
    for part in _PARTS:
        buckets = _buckets(plan, most_bytes // part)
        if not buckets:
            break
        if buckets in known:
            continue
        known.add(buckets)
        found = _with(plan, buckets)
        if limit is None or found.predicted.bytes <= limit:
            if not has_overlap:
                return found
            if fastest is None or found.predicted.seconds < fastest.predicted.seconds:
                fastest = found
    if fastest is None or plan.predicted.seconds < fastest.predicted.seconds:
        return plan
    return fastest


def _buckets(plan: Plan, most_bytes: int) -> tuple[tuple[str, ...], ...]:
    """Return the buckets of one size that pay."""
    parts = stage_documents(plan)
    return tuple(keys for part in parts for keys in choose_buckets(part, most_bytes))


def _with(plan: Plan, buckets: tuple[tuple[str, ...], ...]) -> Plan:
    """Return the plan with these buckets, and what its step takes then."""
    together = replace(plan, buckets=buckets)
    return with_figures(replace(together, collectives=collective_totals(together)))
