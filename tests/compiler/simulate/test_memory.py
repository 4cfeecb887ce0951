"""What a stage holds: every moment of its microbatch is an item's."""

from __future__ import annotations

from partita.compiler.cost.memory import timeline
from partita.compiler.cost.timeline import Category
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.stages import stage_document
from partita.compiler.simulate.memory import stage_memory
from partita.compiler.simulate.stage_items import stage_items

STATE = (Category.PARAMETERS, Category.OPTIMIZER, Category.BUFFERS)


def test_items_hold_what_their_moments_hold(plan: Plan) -> None:
    for number in range(len(plan.stages)):
        document = stage_document(plan, number)
        held, memory = timeline(document), stage_memory(document)
        items = stage_items(document)
        every = [memory.of(item) for item in (*items.microbatch, *items.after)]
        assert max(memory.update, *every) == held.peak_bytes
        at = dict(zip(held.moments, held.bytes_at, strict=True))
        alone = [key for key in memory.during if key in at]
        assert alone
        assert all(memory.during[key] == at[key] for key in alone)


def test_state_is_what_is_there_before_the_first_microbatch(whole: Plan) -> None:
    held, memory = timeline(whole), stage_memory(whole)
    state = [h for h in held.held if h.category in (*STATE, Category.INPUTS)]
    assert memory.state == sum(h.num_bytes for h in state)


def test_gradients_are_left_behind_unless_they_add_up(whole: Plan, parts: Plan) -> None:
    gradients = sum(
        h.num_bytes for h in timeline(whole).held if h.category is Category.GRADIENTS
    )
    assert stage_memory(whole).left >= gradients > 0
    assert stage_memory(parts).left == 0
