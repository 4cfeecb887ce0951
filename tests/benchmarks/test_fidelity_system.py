"""What a stage takes as published systems run it, beside what its plan says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.fidelity.layout import Layout
from benchmarks.fidelity.models import Shape
from benchmarks.fidelity.predict import plan_of_three, predict
from benchmarks.fidelity.system import Hops, System, as_run, joined

import partita as pt
from partita.compiler.cost.collectives import CollectiveKind, axis_seconds
from partita.compiler.cost.memory import timeline
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.again import is_again
from partita.compiler.ir.program import Phase
from partita.compiler.plan.stages import stage_document
from partita.compiler.schedules.schedule import Work
from partita.compiler.simulate.stage_items import Item, StageItems, stage_items

SHAPE = Shape(3, 512, 8, 128, 1024, 2048)
LAYOUT = Layout(SHAPE, "a100-80gb-selene", 1, 2, 2, 1, 4, recompute="full")


MESH = pt.Mesh(dp=2, tp=4)


def middle(layout: Layout) -> pt.Plan:
    """Return the plan of a stage with one layer."""
    return stage_document(plan_of_three(layout), 1)


def item(seconds: float, phase: Phase, axis: str | None = None) -> Item:
    return Item("mm/0", "mm/0", phase, seconds, axis, 8 if axis else 0)


def stage(*microbatch: Item, after: tuple[Item, ...] = ()) -> StageItems:
    return StageItems((), microbatch, after, overlap=0.5)


STAGE = stage(
    item(3.0, Phase.FORWARD),
    item(4.0, Phase.BACKWARD_INPUT),
    after=(item(6.0, Phase.UPDATE, "dp"), item(1.0, Phase.UPDATE)),
)


def seconds(items: StageItems) -> tuple[float, float]:
    return items.seconds[Work.FORWARD], items.seconds[Work.BACKWARD]


def test_what_is_not_kept_runs_again_as_a_whole() -> None:
    plan = middle(LAYOUT)
    kept = as_run(plan, System())
    run = as_run(plan, System(), LAYOUT.not_kept)
    more = {i.key for i in run.microbatch} - {i.key for i in kept.microbatch}
    assert "layers.1.mlp.down/addmm/0~again" in more  # no gradient needs it
    assert "layers.1.mlp.up/addmm/0~again" not in more  # the plan makes it already
    down = plan.nodes["layers.1.mlp.down/addmm/0"].seconds / plan.microbatches
    assert run.seconds[Work.BACKWARD] > kept.seconds[Work.BACKWARD] + down
    assert run.seconds[Work.FORWARD] == kept.seconds[Work.FORWARD]


def test_only_modules_that_are_not_kept_run_again() -> None:
    layout = replace(LAYOUT, recompute="selective")
    run = as_run(middle(layout), System(), layout.not_kept)
    again = {i.key for i in run.microbatch if i.key.endswith("~again")}
    assert "layers.1.attention.core/bmm/1~again" in again
    assert not any("mlp" in key for key in again)


def test_a_host_that_is_behind_decides() -> None:
    assert seconds(joined([STAGE], System(issue_s=1.0), Hops(), MESH)) == (3.0, 4.0)
    assert seconds(joined([STAGE], System(issue_s=5.0), Hops(), MESH)) == (5.0, 5.0)


def test_hosts_that_compare_collectives_are_behind_by_each() -> None:
    sums = stage(
        item(3.0, Phase.FORWARD),
        item(0.5, Phase.FORWARD, "tp"),
        replace(item(0.5, Phase.FORWARD, "tp"), name="all_to_all tp: mm/0"),  # a copy
    )
    system = System(issue_s=1.0, checked_s=((2, 1.0), (8, 7.0)))  # 3 s of 4 hosts
    assert seconds(joined([sums], system, Hops(), MESH))[0] == 3 * 1.0 + 3.0
    assert seconds(joined([sums, sums], system, Hops(), MESH))[0] == 6 * 1.0 + 2 * 3.0
    assert seconds(joined([STAGE], system, Hops(), MESH))[0] == 3.0  # it sends nothing


def test_gradients_are_added_up_as_far_as_the_last_backward_hides_them() -> None:
    def sums_s(system: System, *bytes_of: int) -> float:
        sums = [replace(STAGE.after[0], bytes=n) for n in bytes_of]
        own = replace(STAGE, after=(*sums, STAGE.after[1]))
        after = joined([own], system, Hops(), MESH).after
        assert after[-1].seconds == 1.0  # the update
        return sum(i.seconds for i in after[:-1])

    small, large = 20 * 2**21, 30 * 2**21  # in f32, of two ranks
    assert sums_s(System(), small) == 6.0
    beside = System(sums_in_backward=True)
    assert sums_s(beside, small) == 6.0 - 0.5 * 6.0  # the backward is long enough
    # hosts that compare them begin with the backward, of 4 s
    checked = replace(beside, checked_s=((2, 9.0), (4, 9.0)))
    assert sums_s(checked, small) == 9.0 - 4.0
    assert sums_s(checked, small, small) == pytest.approx(12.0 - 4.0)  # what is left
    assert sums_s(checked, large, small) == pytest.approx(2 * 9.0 - 4.0)


def test_a_host_that_waits_adds_to_every_op() -> None:
    system = System(issue_s=1.0, is_blocking=True)
    assert seconds(joined([STAGE, STAGE], system, Hops(), MESH)) == (8.0, 10.0)


def test_a_rank_that_sends_and_receives_does_nothing_else() -> None:
    hops = Hops(sent_s=(1.0, 2.0), received_s=(10.0, 20.0))
    alone = System(sends_alone=True)
    assert seconds(joined([STAGE], System(), hops, MESH)) == (3.0, 4.0)
    assert seconds(joined([STAGE], alone, hops, MESH)) == (4.0, 6.0)
    alone = replace(alone, receives_alone=True)
    assert seconds(joined([STAGE], alone, hops, MESH)) == (14.0, 26.0)


def test_what_is_announced_holds_up_both_ends() -> None:
    alone = System(sends_alone=True, receives_alone=True)
    layout = Layout(SHAPE, "a100-80gb-selene", 2, 2, 1, 1, 20, system=alone)
    slow = replace(layout, system=replace(alone, announced_s=(4.0, 2.0)))
    # ten microbatches; the first passes two stages, one after the other
    more = predict(slow).seconds - predict(layout).seconds
    assert more == pytest.approx((10 + 1) * (4.0 + 2.0), rel=1e-3)


def test_parts_go_backward_from_the_last_to_the_first() -> None:
    parts = [
        stage(item(1.0, Phase.FORWARD), item(s, Phase.BACKWARD_INPUT))
        for s in (3.0, 5.0)
    ]
    order = joined(parts, System(), Hops(), MESH).by_work[Work.BACKWARD]
    assert [i.seconds for i in order if i.seconds] == [5.0, 3.0]


def test_what_lies_inside_of_kernels_is_neither_kept_nor_timed() -> None:
    layout = replace(LAYOUT, recompute="none")
    fused = replace(
        layout, system=System(fused=("layers.*.mlp/*", "layers.*.mlp.down/view/0"))
    )
    saved = [timeline(middle(each)).saved_bytes for each in (layout, fused)]
    assert saved[1] < saved[0]
    plain, run = (as_run(middle(each), each.system) for each in (layout, fused))
    assert [i.key for i in run.microbatch] == [i.key for i in plain.microbatch]
    made = as_run(middle(fused), System()).microbatch  # as the plan does it
    assert any(is_again(i.key) for i in made)


def test_of_a_sequence_first_nothing_but_the_message_is_moved() -> None:
    layout = replace(LAYOUT, micro=2, recompute="none", is_sequence_parallel=True)
    plan = middle(layout)
    hardware, axis = load_hardware(plan.hardware), plan.mesh.axis("tp")
    gathers = [
        (before, now)
        for before, now in zip(
            stage_items(plan).microbatch, as_run(plan, System()).microbatch, strict=True
        )
        if now.name.startswith("all_gather tp") and not is_again(now.key)
    ]
    assert gathers
    for before, now in gathers:
        kind, num_bytes = CollectiveKind.ALL_GATHER, round(now.bytes)
        message_s = axis_seconds(kind, num_bytes, plan.mesh, axis, hardware)
        assert now.seconds == pytest.approx(message_s)
        assert now.seconds < before.seconds  # which copies what it gathers


def test_asynchronous_products_hide_what_does_not_wait() -> None:
    layout = replace(LAYOUT, recompute="none", is_sequence_parallel=True)
    plan = middle(layout)
    plain, hidden = (
        as_run(plan, System(sums_beside=beside)) for beside in (False, True)
    )
    assert hidden.seconds[Work.BACKWARD] < plain.seconds[Work.BACKWARD]
    assert hidden.seconds[Work.FORWARD] == plain.seconds[Work.FORWARD]
    # No more than what is computed meanwhile, as far as the machine can do both.
    overlap = load_hardware(layout.hardware).overlap
    for before, now in zip(plain.microbatch, hidden.microbatch, strict=True):
        assert now.seconds >= (1 - overlap) * before.seconds - 1e-12


def test_gradients_summed_in_f32_are_twice_as_long() -> None:
    plan = middle(LAYOUT)
    half, whole = (
        as_run(plan, System(sums_in_f32=wide)).after for wide in (False, True)
    )
    for one, other in zip(half, whole, strict=True):
        assert other.bytes == (2 if one.axis == "dp" else 1) * one.bytes
    assert sum(i.seconds for i in whole) > sum(i.seconds for i in half)
    assert stage_items(plan).after == half


def test_a_message_that_is_split_crosses_once() -> None:
    layout = Layout(SHAPE, "a100-80gb-selene", 3, 8, 2, 8, 512)
    whole = predict(replace(layout, system=System(sends_alone=True)))
    parts = predict(replace(layout, system=System(sends_alone=True, splits_sends=True)))
    assert parts.seconds < whole.seconds
