"""The search reckons with sums that pass while ranks compute."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cache, partial

import pytest
from tests.compiler.search.hand_made import machine
from tests.models import zoo
from tests.models.captured import captured
from tests.models.searched import searched
from tests.slow import slow

import partita as pt
from partita.compiler.errors import NoSolution
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.within_limit import Limited
from partita.one_mesh.not_faster import NotFaster
from partita.one_mesh.planner import Planner
from partita.one_mesh.search import Search
from partita.whole_plans.beside_search import BESIDE, BesideSearch
from partita.whole_plans.light_messages import fastest_together

MACHINE = partial(machine, launch_s=1e-7, bytes_per_s=3e7)


@cache
def planner(name: str, overlap: float, mesh: str = "dp=2") -> Planner:
    _, known = captured(name)
    made = MACHINE(overlap=overlap)
    options = pt.Options(hardware=made)
    return Planner(known, name, pt.Mesh.parse(mesh), options)


def found(made: Planner) -> pt.Plan:
    return fastest(BesideSearch(made, Clock.of(60.0)))


def fastest(beside: BesideSearch) -> pt.Plan:
    """Return the fastest plan, its messages sent one by one."""
    first = beside.first(Search(beside.planner, beside.clock))
    return fastest_together(beside.planner, first, 0, beside.clock)


@pytest.mark.parametrize("name", ["mlp", "gpt2", slow("vit")])
def test_it_is_no_slower_than_what_is_found_one_by_one(name: str) -> None:
    made = planner(name, 0.9)
    assert found(made).predicted.seconds <= searched(made).predicted.seconds


def test_no_pins_of_experts_are_faster() -> None:
    built, known = captured("vit")
    made = planner("vit", 0.9)
    best = found(made).predicted.seconds
    for pins in (
        zoo.data_parallel_pins(built, 1),
        zoo.sharded_pins(built[0], 1),
        zoo.tensor_parallel_pins(built[0], 1),
    ):
        pinned = replace(made, options=replace(made.options, pins=pins))
        assert best <= found(pinned).predicted.seconds * (1 + 1e-9)
    assert known is made.captured


def test_what_it_finds_is_told_with_the_gap_to_its_bound() -> None:
    made = planner("vit", 0.9)
    beside = BesideSearch(made, Clock.of(60.0))
    search = Search(made, beside.clock)
    alone, plan = searched(made), beside.first(search).plan
    least_s = beside.least_s(search, plan.predicted.seconds)
    assert least_s <= plan.predicted.seconds < 0.98 * alone.predicted.seconds
    assert plan.predicted.hidden_by_part["communication dp"] > 0.0
    assert BESIDE in plan.search.solver
    assert plan.search.status == "not shown to be optimal"
    gap = 1 - least_s / plan.predicted.seconds
    assert plan.search.gap == pytest.approx(gap)
    model, args, kwargs = captured("vit")[0]
    assert pt.verify(model, *args, plan=plan, **kwargs).ok


def test_where_nothing_is_hidden_it_finds_what_is_found_one_by_one() -> None:
    made = planner("mlp", 0.01)
    plan = found(made)
    assert not plan.predicted.hidden_by_part
    alone = searched(made).predicted
    assert plan.predicted.seconds == pytest.approx(alone.seconds, rel=1e-9)


@cache
def within(part: float) -> Planner:
    """Return a planner that has a part of the memory that its fastest plan holds."""
    made = planner("vit", 0.9)
    limit = int(part * found(made).predicted.bytes)
    return replace(made, options=replace(made.options, memory=limit, time_limit=12.0))


def test_a_memory_limit_is_kept() -> None:
    made = within(0.95)
    alone = searched(made)
    plan = fastest(BesideSearch(made, Clock.of(12.0)))
    assert plan.predicted.bytes <= (made.limit or 0)
    assert plan.predicted.seconds <= alone.predicted.seconds


def test_where_a_plan_fits_how_soon_the_search_one_by_one_ends_says_nothing() -> None:
    made = within(0.95)
    late = Search(made, Clock.of(0.0))
    plan = BesideSearch(made, Clock.of(4.0)).first(late).plan
    assert plan.predicted.bytes <= (made.limit or 0)
    assert not late.steps


def test_of_a_limit_that_leaves_nothing_faster_no_plan_is_made() -> None:
    made = within(0.95)
    least_s = BesideSearch(made, Clock.of(12.0)).least_s(Search(made, Clock.of(1)), 0.0)
    beside = BesideSearch(made, Clock.of(12.0), known_s=least_s)
    search = Search(made, beside.clock)
    with pytest.raises(NotFaster):
        beside.first(search)
    assert not search.steps  # nothing was solved one by one


def test_the_search_one_by_one_begins_where_the_other_found_memory_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = within(0.95)
    run, begun = LimitedSearch.run, list[tuple[bool, list[int]]]()

    def noted(self: LimitedSearch, limit: int) -> Limited:
        begun.append((self.wanted.is_rough, [*self.moments]))
        if self.wanted.is_rough:
            raise NotFaster(None)
        return run(self, limit)

    monkeypatch.setattr(LimitedSearch, "run", noted)
    beside = BesideSearch(made, Clock.of(100.0))
    beside.first(Search(made, beside.clock))
    assert beside.limited is not None
    assert begun[0] == (False, [])
    first = next(moments for is_rough, moments in begun if is_rough)
    assert first == beside.limited.moments[:1] != []


def test_what_is_far_from_a_limit_is_not_searched_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = within(0.5)
    near = Search(made, Clock.of(1.0))
    with pytest.raises(NoSolution):
        BesideSearch(made, Clock.of(4.0)).first(near)
    assert near.steps
    monkeypatch.setattr("partita.compiler.search.by_prices.MOST_NODES", 10)
    monkeypatch.setattr("partita.compiler.search.by_prices._FAR", 1.1)
    far = Search(made, Clock.of(1.0))
    with pytest.raises(NoSolution) as refusal:
        BesideSearch(made, Clock.of(4.0)).first(far)
    assert refusal.value.least_bytes is not None
    assert refusal.value.least_bytes > (made.limit or 0)
    assert not far.steps


@pytest.mark.parametrize(("part", "may"), [(2.0, False), (0.8, True), (0.01, False)])
def test_more_microbatches_may_save_where_the_limit_binds(
    part: float, may: bool
) -> None:
    made = within(part)
    beside = BesideSearch(made, Clock.of(6.0))
    search = Search(made, Clock.of(1.0))
    with suppress(NoSolution):
        beside.first(search)
    assert beside.may_save(search) is may


def test_without_overlap_it_leaves_a_plan_alone() -> None:
    made = planner("mlp", 0.0)
    search = BesideSearch(made, Clock.of(60.0))
    assert fastest(search).nodes == searched(made).nodes
    assert search.messages is None
    assert search.most_hidden_s == 0.0


@pytest.mark.slow
def test_meshes_are_compared_by_what_is_not_hidden() -> None:
    model, args, kwargs = captured("vit")[0]
    made = MACHINE(overlap=0.9)
    options = pt.Options(hardware=made, schedule="sequential")
    plan = pt.plan(model, *args, devices=4, options=options, **kwargs)
    for mesh in ("dp=4", "dp=2,tp=2"):
        other = pt.plan(model, *args, mesh=mesh, options=options, **kwargs)
        assert plan.predicted.seconds <= other.predicted.seconds * (1 + 1e-9)


def test_what_it_takes_at_best_is_told_without_a_search_one_by_one() -> None:
    made = planner("mlp", 0.9)
    beside = BesideSearch(made, Clock.of(60.0))
    search = Search(made, beside.clock)
    assert beside.free is not None
    assert beside.free_s(search) == beside.free.seconds
    assert not search.steps  # nothing was solved
    plain = planner("mlp", 0.0)
    search = Search(plain, beside.clock)
    assert BesideSearch(plain, beside.clock).free_s(search) == search.free_s
