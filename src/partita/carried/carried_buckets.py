"""The buckets of another plan, kept where their boxings still can be sent together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from partita.compiler.errors import BadPlan
from partita.compiler.plan.buckets import collective_totals
from partita.compiler.plan.check_buckets import check_bucket_keys, check_buckets
from partita.compiler.plan.document import Document
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import stage_documents
from partita.compiler.search.turns import with_turns
from partita.whole_plans.bucketed import with_buckets
from partita.whole_plans.recount import with_figures


def with_buckets_like(plan: Plan, old: Document, most_bytes: int) -> Plan:
    """Return ``plan``, which has no buckets, with those of ``old`` that still fit.

    They are kept whether or not they are predicted to pay here, and what ``old`` sends
    alone on the same mesh stays alone. The rest is chosen anew, and so is all where the
    plan's memory limit has no room for them.

    Args:
        plan: the new plan.
        old: the plan whose buckets are kept.
        most_bytes: what buckets chosen anew hold, as ``with_buckets`` takes it.
    """
    anew = with_buckets(plan, most_bytes)
    kept = _kept(plan, old.buckets)
    decided = {key for keys in kept for key in keys}
    if plan.mesh == old.mesh and len(plan.stages) == len(old.stages):
        decided |= _sent_alone(old)
    free = (tuple(key for key in keys if key not in decided) for keys in anew.buckets)
    rest = [keys for keys in free if len(keys) > 1]
    buckets = tuple(_in_order(plan, _kept(plan, [*kept, *rest])))
    if buckets == anew.buckets:
        return anew
    together = replace(plan, buckets=buckets, ahead={}, late={})
    together = replace(together, collectives=collective_totals(together))
    together = with_turns(together) if len(plan.stages) == 1 else together
    found, limit = with_figures(together), plan.options.memory_bytes
    return found if limit is None or found.predicted.bytes <= limit else anew


def _kept(plan: Plan, buckets: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return the buckets that ``plan`` can carry out; earlier ones go first."""
    kept: list[tuple[str, ...]] = []
    if _fits(plan, tuple(buckets)):
        return [*buckets]
    for keys in buckets:
        if _fits(plan, (*kept, keys)):
            kept.append(keys)
    return kept


def _fits(plan: Plan, buckets: tuple[tuple[str, ...], ...]) -> bool:
    """Whether ``plan`` can carry these buckets out."""
    together = replace(plan, buckets=buckets, ahead={}, late={})
    try:
        check_bucket_keys(together)
        for part in stage_documents(together):
            check_buckets(part)
    except BadPlan:
        return False
    return True


def _sent_alone(old: Document) -> set[str]:
    """Return the boxings of a plan that are in no bucket."""
    together = {key for keys in old.buckets for key in keys}
    return {boxing.key for boxing in old.boxings} - together


def _in_order(
    plan: Document, buckets: list[tuple[str, ...]]
) -> Iterator[tuple[str, ...]]:
    """Yield the buckets in the order of the stages, else as they are."""
    producers = {boxing.key: boxing.producer for boxing in plan.boxings}
    yield from sorted(buckets, key=lambda keys: plan.nodes[producers[keys[0]]].stage)
