"""Which boxings share a bucket: in the order of the program, by size, where it pays."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise
from math import ceil

import pytest
from tests.compiler.search.hand_made import machine
from tests.models import zoo
from tests.models.storage_pins import storage_pins

from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.buckets import (
    bucket_seconds,
    bucket_sent,
    collective_totals,
    way_of,
)
from partita.compiler.plan.emitted import completing, emitted_units
from partita.compiler.plan.plan import Plan
from partita.compiler.search.buckets import Packing
from partita.options import Options
from partita.planning import plan as make_plan

MB = 2**20


@cache
def planned(kind: str, microbatches: int = 1, hardware: str = "cpu-gloo") -> Plan:
    """Return a plan of BERT on two ranks, each boxing by itself."""
    built = zoo.bert()
    pins = storage_pins(built, kind, 1)
    model, args, kwargs = built
    options = Options(pins=pins, bucket=0, microbatches=microbatches, hardware=hardware)
    return make_plan(model, *args, mesh=Mesh(dp=2), options=options, **kwargs)


def kinds(plan: Plan, keys: tuple[str, ...]) -> set[str]:
    return {s.kind for b in plan.boxings if b.key in keys for s in b.lowering}


def num_bytes(plan: Plan, keys: tuple[str, ...]) -> list[int]:
    boxings = {boxing.key: boxing for boxing in plan.boxings}
    return [bucket_sent(plan, [boxings[key]])[0].buffer_bytes for key in keys]


def test_gradients_are_one_bucket_if_it_has_room_for_all() -> None:
    plan = planned("zero1")
    buckets = Packing.of(plan).into(25 * MB)
    sums = [keys for keys in buckets if "all_reduce" in kinds(plan, keys)]
    (keys,) = sums
    sent = [
        boxing
        for boxing in plan.boxings
        if any(step.kind == "all_reduce" for step in boxing.lowering)
        and plan.nodes[boxing.producer].phase != "forward"
    ]
    assert set(keys) == {boxing.key for boxing in sent}


def test_members_come_in_the_order_of_the_program() -> None:
    plan = planned("zero1")
    at = {
        item.key: number
        for number, unit in enumerate(emitted_units(plan))
        for item in unit
        if not isinstance(item, str)
    }
    for keys in Packing.of(plan).into(25 * MB):
        inside = [at[key] for key in keys if key in at]
        assert inside == sorted(inside)


@pytest.mark.parametrize("most_bytes", [1024, 40_000, MB])
@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3"])
def test_collectives_are_at_most_one_more_than_the_bytes_ask_for(
    kind: str, most_bytes: int
) -> None:
    plan = planned(kind)
    boxings = {boxing.key: boxing for boxing in plan.boxings}
    ways: dict[object, list[tuple[str, ...]]] = {}
    every = [num_bytes(plan, keys) for keys in Packing.of(plan).into(most_bytes)]
    largest = max(max(sizes) for sizes in every)
    assert largest < most_bytes
    assert max(map(sum, every)) < most_bytes + largest
    for keys in Packing.of(plan).into(most_bytes):
        phase = plan.nodes[boxings[keys[0]].producer].phase
        where = way_of(plan, boxings[keys[0]]), phase, boxings[keys[0]].enters
        ways.setdefault(where, []).append(keys)
    assert ways
    for buckets in ways.values():
        whole = sum(sum(num_bytes(plan, keys)) for keys in buckets)
        assert len(buckets) <= 1 + ceil(whole / most_bytes)


@pytest.mark.parametrize("seed", range(10))
def test_no_as_few_buckets_have_a_smaller_largest(seed: int) -> None:
    rng = random.Random(seed)
    (way, *_) = Packing.of(planned("zero3")).ways
    sizes = [rng.randint(1, 40) for _ in way[:9]]
    sized = [replace(one, held_bytes=n) for one, n in zip(way, sizes, strict=False)]
    most_bytes = rng.randint(20, 80)
    small = {one.boxing.key: n for one in sized if (n := one.held_bytes) < most_bytes}
    found = Packing((tuple(sized),)).into(most_bytes)
    alone = [(key,) for key in small if not any(key in keys for keys in found)]
    number = len(found) + len(alone)
    largest = max(sum(small[key] for key in keys) for keys in (*found, *alone))
    others = [
        max(sum(list(small.values())[a:b]) for a, b in pairwise((0, *at, len(small))))
        for at in combinations(range(1, len(small)), number - 1)
    ]
    assert largest == min(others)
    assert number <= ceil(sum(small.values()) / most_bytes)


def test_a_message_less_has_to_pay_for_the_copies() -> None:
    packing = Packing.of(planned("zero3", hardware="cpu-gloo-free"))
    assert packing.paying(MB) == ()
    assert packing.into(MB)


def test_what_is_saved_in_a_bucket_is_more_than_its_message_takes() -> None:
    built = zoo.mlp()
    model, args, kwargs = built
    options = Options(
        pins=storage_pins(built, "zero3", 1), bucket=0, hardware=machine(alpha_s=2e-6)
    )
    plan = make_plan(model, *args, mesh=Mesh(dp=2), options=options, **kwargs)
    packing = Packing.of(plan)
    saving = [[one for one in way if one.saved_s > 0] for way in packing.ways]
    gathered, scattered = sorted(saving, key=lambda way: way[0].saved_s)
    # Each saves something, but two biases' gathers less than the one that they share.
    assert 0 < sum(one.saved_s for one in gathered) < gathered[0].shared_s
    # Two of the larger gradient would not pay; with the smaller one it does.
    assert min(2 * one.saved_s - one.shared_s for one in scattered) < 0
    (keys,) = packing.paying(MB)
    assert keys == tuple(one.boxing.key for one in scattered)
    together = replace(plan, buckets=(keys,))
    ((together_s, alone_s),) = bucket_seconds(together).values()
    saved_s = sum(one.saved_s for one in scattered) - scattered[0].shared_s
    assert 0 < saved_s == pytest.approx(alone_s - together_s)


@pytest.mark.parametrize("kind", ["zero1", "zero2", "zero3"])
def test_the_fewest_messages_have_all_that_can_be_in_a_bucket(kind: str) -> None:
    packing = Packing.of(planned(kind))
    inside = {key for keys in packing.into(MB) for key in keys}
    paying = {key for keys in packing.paying(MB) for key in keys}
    assert paying <= inside
    for way in packing.ways:
        assert len([one for one in way if one.boxing.key not in inside]) <= 1


def test_what_an_op_of_the_model_waits_for_is_not_held_back() -> None:
    plan = planned("zero1")
    together = {key for keys in Packing.of(plan).into(MB) for key in keys}
    for boxing in plan.boxings:
        users = [plan.nodes[user] for user in boxing.consumers if user in plan.nodes]
        is_parameter = boxing.producer.startswith("parameter:")
        if any(user.phase == "forward" for user in users) and not is_parameter:
            assert boxing.key not in together


def test_gradients_are_completed_in_buckets_behind_the_microbatches() -> None:
    plan = planned("zero2", 2)
    late = {boxing.key for boxing in completing(plan)}
    (keys,) = (keys for keys in Packing.of(plan).into(MB) if late & {*keys})
    assert late > {*keys}  # the loss is none of them
    totals = {(c.kind, c.axis): c for c in collective_totals(plan)}
    assert totals == {(c.kind, c.axis): c for c in plan.collectives}
