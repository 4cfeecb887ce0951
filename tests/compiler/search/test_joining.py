"""Products become one where that is predicted to pay, and the memory allows it."""

from __future__ import annotations

from dataclasses import replace

from tests.models.projected import JOINED, planned
from tests.models.zoo import ZOO

import partita as pt
from partita.compiler.search.fusion import with_groups
from partita.compiler.search.joining import choose_joined
from partita.whole_plans.recount import with_figures


def test_all_that_share_an_input_become_one_where_launches_cost() -> None:
    assert planned().joined == JOINED
    assert planned("tp=2").joined == JOINED
    for group in choose_joined(planned()):
        assert group.saved_s > 0


def test_where_rows_that_lie_apart_cost_more_nothing_does() -> None:
    assert planned(hardware="cpu-gloo").joined == JOINED
    assert planned(hardware="cpu-gloo", rows=1024).joined == ()


def test_what_is_asked_for_by_nobody_is_not_done() -> None:
    model, args, kwargs = ZOO["llama"]()
    options = pt.Options(hardware="h100-dgx")
    plan = pt.plan(model, *args, mesh=pt.Mesh(dp=1), options=options, **kwargs)
    assert plan.joined == ()


def test_under_a_limit_nothing_is_joined_that_would_break_it() -> None:
    model, args, kwargs = ZOO["opt"]()
    options = pt.Options(hardware="cpu-gloo", fuse=True)
    plan = pt.plan(model, *args, mesh=pt.Mesh(dp=1), options=options, **kwargs)
    assert plan.joined
    apart = with_figures(replace(plan, joined=(), fusion=()))
    assert (
        apart.predicted.bytes < with_figures(replace(plan, fusion=())).predicted.bytes
    )
    groups = choose_joined(plan)
    limited = replace(plan.options, memory_bytes=apart.predicted.bytes)
    found = with_groups(replace(apart, options=limited), (), groups)
    assert found.joined == ()
    assert with_groups(apart, (), groups).joined == plan.joined


def test_under_a_limit_with_room_for_some_those_are_joined_that_save_most() -> None:
    model, args, kwargs = ZOO["opt"]()
    options = pt.Options(hardware="cpu-gloo", fuse=True)
    plan = pt.plan(model, *args, mesh=pt.Mesh(dp=1), options=options, **kwargs)
    apart = with_figures(replace(plan, joined=(), fusion=()))
    first, second = choose_joined(plan)
    groups = first, replace(second, saved_s=2 * first.saved_s)
    one = with_groups(apart, (), [second])
    assert one.predicted.bytes < with_groups(apart, (), groups).predicted.bytes
    limited = replace(plan.options, memory_bytes=one.predicted.bytes)
    found = with_groups(replace(apart, options=limited), (), groups)
    assert found.joined == (second.keys,)
