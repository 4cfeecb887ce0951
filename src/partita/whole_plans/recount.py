"""What a plan's step takes and holds by its decisions, whatever its file says.

A plan is source, and may be edited by hand: figures then stand beside decisions that
they are not of.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from math import isclose

from partita.compiler.cost.memory import timeline
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.buckets import collective_totals, sending, steps_alone
from partita.compiler.plan.document import Document, Expanded, Node, Predicted
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.sent import sent_bytes
from partita.compiler.plan.stages import stage_documents
from partita.compiler.plan.uses import held_of
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.table import default_rules
from partita.compiler.search.group_seconds import GroupSeconds
from partita.compiler.search.held import Held
from partita.compiler.search.joined_seconds import JoinedSeconds
from partita.compiler.search.stage_cost import StageHeld
from partita.compiler.simulate.hidden import with_hidden
from partita.compiler.simulate.plan import simulate_step
from partita.compiler.simulate.reprice import price_anew
from partita.compiler.simulate.turn_items import TurnItems
from partita.pipelines.staged import predicted

_SAME = 1e-6
"""By how much sums in another order may differ, relatively."""


@dataclass(frozen=True, slots=True)
class Recounted:
    """A plan whose figures are those of its decisions.

    Attributes:
        plan: with what its calls, boxings and transfers take, and the whole step.
        estimated: keys of calls that the plan tells too little of: their seconds are
            those that it states.
        is_edited: whether the plan stated other figures of the whole step.
    """

    plan: Plan
    estimated: tuple[str, ...]
    is_edited: bool


def recount(plan: Plan, rules: RuleSet = default_rules) -> Recounted:
    """Return the plan with what its decisions take on the machine that it names.

    ``rules`` are those that it was made with. What it tells of the search stays, and of
    alternatives where nothing changes: elsewhere they were compared with what is gone,
    and are left out.
    """
    priced = price_anew(plan, rules)
    counted = replace(priced.plan, collectives=collective_totals(priced.plan))
    found = with_figures(_without_old_alternatives(counted, _changed(plan, counted)))
    pairs = zip(
        whole_figures(plan).values(), whole_figures(found).values(), strict=True
    )
    is_same = all(isclose(stated, counted, rel_tol=_SAME) for stated, counted in pairs)
    if is_same:  # sums in another order are no edit, and make no line of a diff
        found = replace(found, predicted=plan.predicted)
    return Recounted(found, priced.estimated, not is_same)


def with_figures(plan: Plan) -> Plan:
    """Return the plan with what its step takes and holds, by its calls and boxings."""
    if len(plan.stages) == 1:
        return with_memory(with_seconds(plan))
    return predicted(plan, [*map(StageHeld.of, stage_documents(plan))])


def with_seconds(plan: Plan, items: TurnItems | None = None) -> Plan:
    """Return the plan of one stage with what its step takes.

    What it holds takes longer to count, and stays as it is stated (``with_memory``).
    ``items`` are known of a plan that differs in its turns and buckets alone.
    """
    return replace(plan, predicted=with_hidden(one_after_another(plan), plan, items))


def one_after_another(plan: Plan) -> Predicted:
    """Return what a plan of one stage predicts with nothing beside anything.

    What it holds is as it is stated.
    """
    seconds, stated = apart_by_part(plan), plan.predicted
    return Predicted(sum(seconds.values()), stated.bytes, seconds, stated.bytes_by_part)


def with_memory(plan: Plan, items: TurnItems | None = None) -> Plan:
    """Return the plan of one stage with what its ranks hold.

    ``items`` are known of a plan that differs in its turns and buckets alone.
    """
    held = timeline(plan) if items is None else items.timeline(plan)
    found = replace(plan.predicted, bytes=held.peak_bytes, bytes_by_part=held.at_peak)
    return replace(plan, predicted=found)


def _changed(stated: Document, counted: Document) -> set[str]:
    """Return the nodes that take another time than is stated, or touch what does."""
    found = {
        key
        for key, node in counted.nodes.items()
        if not isclose(stated.nodes[key].seconds, node.seconds, rel_tol=_SAME)
    }
    for before, after in zip(stated.boxings, counted.boxings, strict=True):
        is_same = isclose(before.seconds, after.seconds, rel_tol=_SAME)
        if not is_same or before.bytes != after.bytes:
            found |= {after.producer, *after.consumers}
    return found


def _without_old_alternatives(plan: Plan, changed: Set[str]) -> Plan:
    """Return the plan without what these nodes could have been, and the chosen ones."""
    nodes = {
        key: replace(
            node, alternatives=_others(node, key in changed, held_of(plan, node))
        )
        for key, node in plan.nodes.items()
    }
    expanded = {
        key: replace(
            whole, alternatives=_others(whole, not changed.isdisjoint(whole.nodes))
        )
        for key, whole in plan.expanded.items()
    }
    return replace(plan, nodes=nodes, expanded=expanded)


def _others(
    node: Node | Expanded, is_changed: bool, held: Held | None = None
) -> tuple[Alternative, ...]:
    """Return its alternatives but for what it does; of a parameter how it is held."""
    if is_changed:
        return ()
    return tuple(
        other
        for other in node.alternatives
        if other.signature != node.signature or other.held not in (None, held)
    )


def whole_figures(plan: Document) -> dict[str, float]:
    """Return what a plan states of the whole step: bytes and seconds, by name."""
    return {
        "memory": plan.predicted.bytes,
        "communication": sent_bytes(plan),
        "step": plan.predicted.seconds,
    }


def apart_by_part(plan: Plan) -> dict[str, float]:
    """Return what a step of one stage takes, one thing after another, by part."""
    seconds = {"compute": 0.0, "update": 0.0}
    for node in plan.nodes.values():
        seconds["update" if node.role else "compute"] += node.seconds
    fused, joined = GroupSeconds(plan), JoinedSeconds(plan)
    groups = [(fused, keys) for keys in plan.fusion]
    for at_once, keys in (*groups, *((joined, keys) for keys in plan.joined)):
        alone_s = sum(plan.nodes[key].seconds for key in keys)
        seconds["compute"] -= alone_s - at_once(keys)
    for _, step in steps_alone(plan):
        part = f"communication {step.axis}" if step.bytes else "local copies"
        seconds[part] = seconds.get(part, 0.0) + step.seconds
    hardware = load_hardware(plan.hardware)
    for sent in sending(plan):
        part = f"communication {sent.axis}"
        seconds[part] = seconds.get(part, 0.0) + sent.seconds(hardware)
    if plan.microbatches > 1:
        step = simulate_step(plan)
        total = step.seconds + plan.microbatches * sum(step.stages[0].hidden_s.values())
        seconds["accumulation"] = total - sum(seconds.values())
    return seconds
