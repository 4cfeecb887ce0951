"""The search of one mesh: what it finds, and what it knows of that."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.models import zoo
from tests.models.pipelines import FEW_CALLS, WIDTH, Chain
from tests.models.searched import searched

from partita import Mesh, Options
from partita.compiler.errors import NoSolution
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.wanted import Wanted
from partita.compiler.search.within_limit import Limited
from partita.one_mesh.not_faster import NotFaster
from partita.one_mesh.planner import Planner
from partita.one_mesh.search import Search


def test_what_is_told_before_a_search_is_no_more_than_what_it_finds() -> None:
    model, args, _ = zoo.mlp()
    planner = Planner.of(model, args, {}, Mesh(dp=2, tp=2), Options())
    search = Search(planner, Clock.of(60.0))
    least_s = search.least_s()
    assert not search.is_shown
    assert 0 < least_s <= search.run().predicted.seconds * (1 + 1e-9)
    assert search.is_shown


def test_where_a_faster_plan_is_known_none_is_made_under_a_limit() -> None:
    x = torch.ones(8, WIDTH)
    free = Planner.of(Chain(2), (x, x), {}, Mesh(dp=2), Options())
    limit = searched(free).predicted.bytes * 7 // 10
    planner = replace(free, options=replace(free.options, memory=limit))
    found = searched(planner)
    slower = Search(planner, Clock.of(60.0), wanted=Wanted(found.predicted.seconds / 2))
    with pytest.raises(NotFaster) as caught:
        slower.run()
    assert caught.value.seconds is None
    assert slower.is_shown
    assert slower.limited is not None
    assert not slower.limited.moments, "no more is searched than without the limit"
    faster = Search(planner, Clock.of(60.0), wanted=Wanted(found.predicted.seconds * 2))
    assert faster.run().predicted.seconds == found.predicted.seconds


def test_it_knows_whether_what_it_found_is_the_best() -> None:
    model, args, kwargs = FEW_CALLS["chain"]()
    free = Planner.of(model, args, kwargs, Mesh(dp=2), Options())
    limit = searched(free).predicted.bytes - 1

    def within(limit: int, seconds: float) -> Search:
        options = replace(free.options, memory=limit)
        return Search(replace(free, options=options), Clock.of(seconds))

    there_is_time, too_late = within(limit, 60.0), within(limit, 0.0)
    best = there_is_time.run().predicted
    assert there_is_time.is_shown
    assert too_late.run().predicted.seconds >= best.seconds
    assert not too_late.is_shown
    refused = within(1, 60.0)
    with pytest.raises(NoSolution):
        refused.run()
    assert refused.is_shown, "what stays from step to step is more"


def test_that_nothing_was_found_in_time_shows_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, args, kwargs = FEW_CALLS["chain"]()
    free = Planner.of(model, args, kwargs, Mesh(dp=2), Options())
    limit = searched(free).predicted.bytes // 2
    options = replace(free.options, memory=limit)
    search = Search(replace(free, options=options), Clock.of(60.0))

    def nothing(_: LimitedSearch, limit: int, best: Limited) -> Limited:
        return best

    monkeypatch.setattr(LimitedSearch, "_search", nothing)
    monkeypatch.setattr(LimitedSearch, "_least", nothing)
    with pytest.raises(NoSolution):
        search.run()
    assert search.limited is not None
    assert search.limited.state_bytes <= limit
    assert not search.is_shown
