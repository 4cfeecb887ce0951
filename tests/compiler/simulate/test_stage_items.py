"""What a stage does: its sums, its order, what belongs to which action."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partita.compiler.ir.program import Phase
from partita.compiler.plan.emitted import completing_units, entering_units
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import stage_document
from partita.compiler.schedules.schedule import Work
from partita.compiler.simulate.stage_items import stage_items


def test_items_add_up_to_what_the_plan_predicts(one_stage: Plan) -> None:
    items = stage_items(one_stage)
    once = sum(item.seconds for item in (*items.before, *items.after))
    each = sum(item.seconds for item in items.microbatch)
    total = once + one_stage.microbatches * each
    assert total == pytest.approx(one_stage.predicted.seconds, rel=1e-9)


def test_halves_of_a_backward_make_it_whole(plan: Plan) -> None:
    forward_s = 0.0
    for number in range(len(plan.stages)):
        found = stage_items(stage_document(plan, number)).seconds
        halves = found[Work.BACKWARD_INPUT] + found[Work.BACKWARD_WEIGHT]
        assert found[Work.BACKWARD] == pytest.approx(halves)
        forward_s += found[Work.FORWARD]
    assert forward_s > 0  # a stage of views takes no time


def test_a_microbatch_takes_its_part_of_every_call(parts: Plan) -> None:
    items = {item.name: item for item in stage_items(parts).microbatch}
    calls = {key for key, node in parts.nodes.items() if node.role is None}
    assert calls <= set(items)
    for key in calls:
        assert items[key].seconds == parts.nodes[key].seconds / 4


def test_gradients_are_completed_behind_all_microbatches(parts: Plan) -> None:
    items = stage_items(parts)
    complete = [unit[0].key for unit in completing_units(parts)]
    brought = [unit[0].key for unit in entering_units(parts)]
    assert parts.buckets
    after = [item.key for item in items.after]
    assert complete
    assert brought
    assert set(complete) <= set(after)
    assert [item.phase is Phase.UPDATE for item in items.after] == sorted(
        item.phase is Phase.UPDATE for item in items.after
    )
    assert {item.key for item in items.before} >= set(brought)
    assert not {item.key for item in items.microbatch} & {*complete, *brought}


def test_a_fused_group_is_one_item_and_quicker_than_its_nodes(fused: Plan) -> None:
    items = {item.key: item for item in stage_items(fused).microbatch}
    for group in fused.fusion:
        apart = sum(fused.nodes[key].seconds for key in group)
        assert items[group[0]].seconds < apart
        assert not set(group[1:]) & set(items)


def test_what_the_stage_before_waits_for_is_not_left_to_the_weights(
    fused: Plan,
) -> None:
    keys = next(
        group
        for group in fused.fusion
        if fused.nodes[group[0]].phase is not Phase.FORWARD
    )
    phases = dict.fromkeys(keys, Phase.BACKWARD_WEIGHT)
    phases[keys[-1]] = Phase.BACKWARD_INPUT
    nodes = {
        key: replace(node, phase=phases.get(key, node.phase))
        for key, node in fused.nodes.items()
    }
    items = stage_items(replace(fused, nodes=nodes))
    inputs = items.by_work[Work.BACKWARD_INPUT]
    assert keys[0] in {item.key for item in inputs}
