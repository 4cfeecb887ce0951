"""Buckets in a plan: what they save, what they hold, what they ask of a limit."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from tests.compiler.search.hand_made import machine
from tests.models import zoo
from tests.models.storage_pins import storage_pins
from tests.models.wide import plan_in_pieces
from tests.slow import all_slow_but

from partita.compiler.errors import BadOptions, BadPlan
from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.sent import sent_bytes
from partita.compiler.search.buckets import Packing
from partita.options import Options
from partita.planning import plan as make_plan
from partita.whole_plans.bucketed import with_buckets
from partita.whole_plans.recount import recount

KINDS = ("zero1", "zero2", "zero3")


@cache
def planned(kind: str, bucket: str | int = 0, mesh: str = "dp=2") -> Plan:
    built = zoo.bert()
    model, args, kwargs = built
    pins = storage_pins(built, kind, 1)
    options = Options(pins=pins, bucket=bucket)
    return make_plan(model, *args, mesh=Mesh.parse(mesh), options=options, **kwargs)


@pytest.mark.parametrize("kind", all_slow_but(["zero1", "zero3"], KINDS))
def test_a_plan_with_buckets_sends_as_much_in_less_time(kind: str) -> None:
    apart, together = planned(kind), planned(kind, "25MiB")
    assert not apart.buckets
    assert together.buckets
    assert replace(together, buckets=()).boxings == apart.boxings
    assert sent_bytes(together) == sent_bytes(apart)
    assert together.predicted.seconds < apart.predicted.seconds
    counts = [sum(c.count for c in plan.collectives) for plan in (apart, together)]
    fewer = sum(len(keys) - 1 for keys in together.buckets)
    assert counts[1] == counts[0] - fewer


@pytest.mark.parametrize("kind", all_slow_but(["zero1", "zero3"], KINDS))
def test_what_a_plan_with_buckets_states_is_what_its_decisions_take(kind: str) -> None:
    found = recount(planned(kind, "25MiB"))
    assert not found.is_edited
    edited = replace(planned(kind, "25MiB"), buckets=())
    assert recount(edited).is_edited


def test_under_a_limit_buckets_are_smaller_or_none() -> None:
    apart = planned("zero2")
    whole = with_buckets(apart, 2**20)
    assert whole.predicted.bytes > apart.predicted.bytes
    limit = (whole.predicted.bytes + apart.predicted.bytes) // 2
    limited = replace(apart, options=replace(apart.options, memory_bytes=limit))
    found = with_buckets(limited, 2**20)
    assert found.buckets != whole.buckets
    assert found.predicted.bytes <= limit
    least = replace(apart.options, memory_bytes=apart.predicted.bytes)
    assert with_buckets(replace(apart, options=least), 2**20).predicted.bytes <= (
        apart.predicted.bytes
    )


def test_messages_are_as_few_as_can_be_where_they_are_waited_for() -> None:
    plan = plan_in_pieces()
    packing = Packing.of(plan)
    assert plan.buckets == packing.into(25 * 2**20) != packing.paying(25 * 2**20)


def test_fewer_messages_may_not_make_a_step_much_longer() -> None:
    quick = machine(alpha_s=1e-9, memory_bytes_per_s=1e5)
    built = zoo.bert()
    model, args, kwargs = built
    options = Options(pins=storage_pins(built, "zero3", 1), hardware=quick)
    plan = make_plan(model, *args, mesh=Mesh(dp=2), options=options, **kwargs)
    assert not plan.buckets
    assert Packing.of(plan).into(25 * 2**20)


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(BadOptions) as caught:
        Options(bucket="some")
    assert str(caught.value) == (
        "bucket is 'some'; want e.g. '24GiB' or a whole number of bytes"
    )


def broken(plan: Plan, buckets: tuple[tuple[str, ...], ...]) -> str:
    with pytest.raises(BadPlan) as caught:
        replace(plan, buckets=buckets).validate()
    return str(caught.value)


def test_buckets_that_cannot_be_are_refused() -> None:
    plan = planned("zero3", "25MiB")
    first, *_ = plan.buckets
    assert broken(plan, (("a", "b"),)) == (
        "plan: buckets[0]: found 'a', wanted the key of a boxing"
    )
    assert broken(plan, (first[:1],)) == (
        "plan: buckets[0]: found 1 boxings, wanted 2 at least"
    )
    assert broken(plan, (first, first)) == (
        f"plan: buckets[1]: {first[0]!r} is in buckets[0] already"
    )
    mixed = (plan.buckets[0][0], plan.buckets[-1][0])
    assert broken(plan, (mixed,)) == (
        f"plan: buckets[0]: {mixed[1]!r} is not like {mixed[0]!r}; want the same "
        "collectives along the same axes, on one dtype, in one part of the step"
    )
    plan = planned("zero1", "25MiB")
    alone = next(
        b.key for b in plan.boxings if {s.kind for s in b.lowering} == {"slice"}
    )
    mixed = alone, plan.buckets[0][0]
    assert "takes steps that cannot be shared" in broken(plan, (mixed,))
