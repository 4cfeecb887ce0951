"""A planner: several plans of one captured model on one mesh."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.compiler.search.hand_made import machine
from tests.models import zoo
from tests.models.pipelines import WIDTH, Chain

from partita import Mesh, Options
from partita.compiler.search.parts import Clock
from partita.compiler.search.wanted import Wanted
from partita.one_mesh.not_faster import NotFaster
from partita.one_mesh.planner import Planner, Search


def test_time_limit_is_kept_and_told() -> None:
    model, args, _ = zoo.mlp()
    options = Options(time_limit=30.0, hardware=machine())
    found = Planner.of(model, args, {}, Mesh(dp=2, tp=2), options).search()
    assert found.search.seconds < 30.0
    assert found.search.status == "optimal"
    assert found.search.gap is not None
    assert found.search.gap <= 1e-7


def test_random_plans_differ_by_seed() -> None:
    model, args, _ = zoo.mlp()
    planner = Planner.of(model, args, {}, Mesh(tp=2), Options())
    assert planner.random(1).nodes == planner.random(1).nodes
    assert planner.random(1).nodes != planner.random(2).nodes
    assert planner.random(1).search.solver == "random"
    assert not any(node.alternatives for node in planner.random(1).nodes.values())


def test_what_is_told_before_a_search_is_no_more_than_what_it_finds() -> None:
    model, args, _ = zoo.mlp()
    planner = Planner.of(model, args, {}, Mesh(dp=2, tp=2), Options())
    search = Search(planner, Clock.of(60.0))
    least_s = search.least_s()
    assert 0 < least_s <= search.run().predicted.seconds * (1 + 1e-9)


def test_where_a_faster_plan_is_known_none_is_made_under_a_limit() -> None:
    x = torch.ones(8, WIDTH)
    free = Planner.of(Chain(2), (x, x), {}, Mesh(dp=2), Options())
    limit = free.search().predicted.bytes * 7 // 10
    planner = replace(free, options=replace(free.options, memory=limit))
    found = planner.search()
    slower = Search(planner, Clock.of(60.0), wanted=Wanted(found.predicted.seconds / 2))
    with pytest.raises(NotFaster) as caught:
        slower.run()
    assert caught.value.seconds is None
    assert slower.limited is not None
    assert not slower.limited.moments, "no more is searched than without the limit"
    faster = Search(planner, Clock.of(60.0), wanted=Wanted(found.predicted.seconds * 2))
    assert faster.run().predicted.seconds == found.predicted.seconds
