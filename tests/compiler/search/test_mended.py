"""What edited placements want is what the search would have put there."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from tests.models.captured import captured
from tests.models.pipelines import BATCH, WIDTH, Chain
from tests.models.searched import searched
from tests.models.turned import turned
from tests.slow import slow

import partita as pt
from partita.compiler.ir.signature import Signature
from partita.compiler.plan.document import Boxing
from partita.compiler.search.mended import with_wanted_boxings
from partita.microbatched import in_microbatches
from partita.one_mesh.planner import Planner


@cache
def planner(name: str, count: int = 1) -> Planner:
    _, known = captured(name)
    parts = in_microbatches(known, count, pt.Options().rules)
    return Planner(parts, name, pt.Mesh(dp=2, tp=2), pt.Options())


@cache
def drawn(name: str, seed: int, count: int = 1) -> pt.Plan:
    return planner(name, count).random(seed)


def by_key(boxings: tuple[Boxing, ...]) -> dict[str, Boxing]:
    return {
        boxing.key: replace(boxing, consumers=tuple(sorted(boxing.consumers)), why="")
        for boxing in boxings
    }


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", ["mlp", "gpt2", slow("resnet")])
def test_boxings_that_were_lost_are_found_again(name: str, count: int) -> None:
    if (name, count) == ("resnet", 2):
        name = "bert"  # batch norm is not for microbatches
    for seed in range(4):
        plan = drawn(name, seed, count)
        assert plan.boxings
        found, mended = with_wanted_boxings(replace(plan, boxings=()))
        assert by_key(found.boxings) == by_key(plan.boxings)
        assert set(mended.added) == {boxing.key for boxing in plan.boxings}
        assert (found.recompute, mended.dropped) == (plan.recompute, ())


def test_random_plans_make_again_and_hold_parameters_otherwise() -> None:
    plans = [drawn("gpt2", seed) for seed in range(8)]
    assert any(b.key in plan.recompute for plan in plans for b in plan.boxings)
    assert any(b.enters for plan in plans for b in plan.boxings)


def test_a_plan_that_nobody_edited_stays() -> None:
    plan = searched(planner("gpt2"))
    found, mended = with_wanted_boxings(plan)
    assert found == plan
    assert mended.added == mended.dropped == ()


@pytest.mark.parametrize("optimizer", ["adamw", slow("sgd")])
def test_pipelines_stay_and_get_back_what_they_lost(optimizer: str) -> None:
    batch = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)
    pins = {"*.weight": "storage=(B); gradient=(S(0)); optimizer=(S(0))"}
    options = pt.Options(
        microbatches=2, pins=pins, optimizer=optimizer, schedule="1f1b"
    )
    plan = pt.plan(Chain(4), *batch, mesh="pp=2,dp=2", options=options)
    assert any(boxing.enters for boxing in plan.boxings)
    assert with_wanted_boxings(plan)[0] == plan
    found, _ = with_wanted_boxings(replace(plan, boxings=()))
    assert by_key(found.boxings) == by_key(plan.boxings)


def edited(plan: pt.Plan, boxing: Boxing) -> pt.Plan:
    """Return the plan with its one user of a boxing taking the tensor as it is made."""
    (key,) = boxing.consumers
    node = plan.nodes[key]
    operands = [
        boxing.source if ref == boxing.ref else placement
        for ref, placement in zip(node.operands, node.signature.operands, strict=True)
    ]
    signature = Signature(tuple(operands), node.signature.results)
    return replace(plan, nodes={**plan.nodes, key: replace(node, signature=signature)})


def test_what_nobody_wants_goes_from_buckets_too() -> None:
    plan = planner("mlp").random(1)
    single = [b for b in plan.boxings if len(b.consumers) == 1 and not b.enters]
    boxing = next(b for b in single if b.consumers[0] in plan.nodes)
    bucket = boxing.key, next(b.key for b in plan.boxings if b is not boxing)
    found, mended = with_wanted_boxings(
        replace(edited(plan, boxing), buckets=(bucket,))
    )
    assert (mended.added, mended.dropped) == ((), (boxing.key,))
    assert boxing.key not in by_key(found.boxings)
    assert found.buckets == ()
    assert str(mended) == f"0 boxings added, 1 dropped ({boxing.key})"


def test_when_changed_messages_pass_is_left_out() -> None:
    plan = turned("zero3", again=True, bucket=2**14)
    same, _ = with_wanted_boxings(plan)
    assert (same.ahead, same.late) == (plan.ahead, plan.late)
    keys = next(keys for keys in plan.buckets if keys[0] in plan.late)
    lost = next(boxing for boxing in plan.boxings if boxing.key == keys[-1])
    left = [boxing for boxing in plan.boxings if boxing is not lost]
    edited = [replace(lost, source=plan.boxings[0].source), *left]
    found, _ = with_wanted_boxings(replace(plan, boxings=tuple(edited)))
    assert keys[0] not in found.late
    assert found.ahead == plan.ahead
    places = {place for key, place in plan.late.items() if key in found.late}
    assert places - {keys[0]} <= {*found.late.values()}
