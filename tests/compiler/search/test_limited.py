"""Searches under a memory limit: what they hold, and what they find."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.compiler.search.hand_made import RandomModel, machine, planner
from torch import Tensor, nn

from partita.compiler.ir.mesh import Mesh
from partita.compiler.search import limited as module
from partita.compiler.search import met
from partita.compiler.search.holdings import Holdings, find_holdings
from partita.compiler.search.keeping import (
    Keeping,
    choose_keeping,
    keep,
    least_keeping,
)
from partita.compiler.search.limited import LimitedSearch
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import cost_of
from partita.compiler.search.solver import solve
from partita.compiler.search.wanted import ROUGH, Wanted
from partita.compiler.search.within_limit import Limited


class Layers(nn.Module):
    """Wide layers whose activations are as large as their weights."""

    def __init__(self, count: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x.square().mean()


def limited(
    posed: Posed, optimizer: str = "adamw", seconds: float = 60
) -> LimitedSearch:
    free = solve(posed.problem, 60)
    return LimitedSearch(posed, free, optimizer, Clock.of(seconds))


def posed_layers(mesh: Mesh, count: int = 3) -> Posed:
    hardware = machine(flops_per_s=1e8, bytes_per_s=1e6)
    model, x = Layers(count), torch.randn(64, 32)
    return planner(model, x, mesh=mesh, hardware=hardware).posed


def test_what_is_held_counts_every_tensor_once() -> None:
    posed = posed_layers(Mesh(tp=1))
    search = limited(posed, "adamw")
    held = find_holdings(posed, search.free.choices, "adamw")
    weights = 3 * (32 * 32 + 32) * 4
    inputs = 64 * 32 * 4
    entering = [one for one in held.holdings if one.first < 0]
    assert sum(one.num_bytes for one in entering) == inputs
    assert held.state_bytes >= 3 * weights, "state is counted apart"
    made = [key for one in held.holdings for key in one.keys]
    assert len(made) == len(set(made))


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [Mesh(tp=2), Mesh(dp=2, tp=2)], ids=str)
def test_less_room_costs_time_and_is_kept_to(mesh: Mesh) -> None:
    posed = posed_layers(mesh)
    search = limited(posed, "adamw", 20)
    free = search.run(1 << 40)
    assert not free.keeping.again
    assert free.choices == search.free.choices
    assert free.price == 0, "room that nobody needs is worth nothing"
    least_s, top = free.seconds, free.keeping.peak_bytes
    for part in (0.8, 0.65, 0.55):
        found = search.run(int(part * top))
        assert found.fits
        assert found.keeping.peak_bytes <= part * top
        assert found.seconds >= least_s * (1 - 1e-9), "more room has no higher bound"
        least_s = max(least_s, found.bound_s)
        assert free.seconds * (1 - 1e-9) <= found.bound_s <= found.seconds
        exact = cost_of(posed.problem, found.choices)
        assert found.seconds == pytest.approx(exact + found.keeping.seconds)
    lost_s = found.seconds - free.seconds
    given_up = top - found.keeping.peak_bytes
    assert lost_s / given_up < 8 * found.price, "the last bytes are the dearest"


def test_memory_first_has_a_price_where_it_is_short_with_most_made_again() -> None:
    posed = posed_layers(Mesh(tp=4))
    search = limited(posed)
    held = find_holdings(posed, search.free.choices, "adamw")
    fastest = keep(held, ())
    limit = fastest.peak_bytes // 2
    least = least_keeping(held, fastest, limit, Clock.of(60))
    assert least.moment != fastest.moment
    search.run(limit)
    assert search.moments[0] == least.moment


def test_a_little_less_room_is_searched_to_the_end() -> None:
    search = limited(posed_layers(Mesh(tp=2)))
    peak = search.run(1 << 40).keeping.peak_bytes
    found = search.run(int(0.8 * peak))
    assert found.is_optimal
    assert found.solver.startswith("HiGHS")
    assert found.solution(found.bound_s).status == "optimal"
    half = found.solution(found.seconds / 2)
    assert (half.status, half.gap) == ("not shown to be optimal", 0.5)


def test_what_is_no_faster_than_what_is_known_is_not_searched() -> None:
    posed = posed_layers(Mesh(tp=2))
    search = limited(posed)
    limit = int(0.8 * search.run(1 << 40).keeping.peak_bytes)
    best = search.run(limit)
    wanted = Wanted(1.1 * best.seconds)
    again = LimitedSearch(posed, search.free, "adamw", Clock.of(60), wanted)
    found = again.run(limit)
    assert found.seconds == pytest.approx(best.seconds)
    assert found.bound_s <= best.seconds * (1 + 1e-9)


def test_what_else_was_met_keeps_to_the_limit_too() -> None:
    search = limited(posed_layers(Mesh(dp=2, tp=2)))
    limit = int(0.7 * search.run(1 << 40).keeping.peak_bytes)
    search.wanted = ROUGH
    best = search.run(limit)
    met = search.fitting(limit)
    assert len(met) > 2
    assert all(one.fits and one.keeping.peak_bytes <= limit for one in met)
    assert [one.seconds for one in met] == sorted(one.seconds for one in met)
    assert met[0].seconds == best.seconds
    others = search.others(limit, met[0].choices, best.seconds)
    little = [one for one in met[1:] if one.seconds <= 1.002 * best.seconds]
    assert 0 < len(little) < len(met) - 1
    assert [one.choices for one in others] == [one.choices for one in little]


def test_of_too_much_for_a_program_it_mixes_what_was_met(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    posed = posed_layers(Mesh(tp=2))
    for name in ("MOST_NODES", "_MOST_NODES_APART"):  # nothing else is tried
        monkeypatch.setattr(module, name, 0)
    found: list[Limited] = []
    for most in (0, 300):  # nothing may be written down; what was met, but not all
        monkeypatch.setattr(module, "_MOST_ENTRIES", most)
        search = limited(posed)
        limit = int(0.65 * search.run(1 << 40).keeping.peak_bytes)
        found.append(search.run(limit))
        assert found[-1].keeping.peak_bytes <= limit
    by_prices, mixed = found
    assert mixed.seconds < by_prices.seconds
    assert mixed.bound_s == by_prices.bound_s, "what is best of a part bounds nothing"


def test_what_fits_makes_less_again_where_blocks_may_differ_in_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def half(held: Holdings, known: Keeping, limit: int, clock: Clock) -> Keeping:
        return replace(known, seconds=known.seconds / 2)

    monkeypatch.setattr(met, "keeping_one_by_one", half)
    posed = posed_layers(Mesh(tp=2))
    search = limited(posed, "adamw", 4)
    limit = int(0.65 * search.run(1 << 40).keeping.peak_bytes)
    found = search.run(limit)
    held = find_holdings(posed, found.choices, "adamw")
    known = choose_keeping(held, limit, Clock.of(60)).seconds
    assert found.keeping.seconds == known / 2 > 0
    exact = cost_of(posed.problem, found.choices)
    assert found.seconds == pytest.approx(exact + known / 2)
    assert found.bound_s <= found.seconds


def test_what_ran_out_of_time_is_chosen_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def noted(held: Holdings, known: Keeping, limit: int, clock: Clock) -> Keeping:
        asked.append(clock.left_s)
        return known

    monkeypatch.setattr(met, "keeping_one_by_one", noted)
    posed = posed_layers(Mesh(tp=2))
    free = limited(posed).free.choices
    own = met.Met(posed, "adamw", posed.fold.class_of, 1)
    known = keep(own.held_by(free), ())
    for clock in (Clock.of(0), Clock.of(60), Clock.of(60)):
        assert own.one_by_one(free, known, known.peak_bytes, clock) is known
    assert len(asked) == 2
    assert asked[0] <= 0 < asked[1] <= 10


@pytest.mark.slow
def test_equal_blocks_differ_where_memory_is_short() -> None:
    posed = posed_layers(Mesh(tp=2), 6)
    search = limited(posed)
    assert search.fold.has_classes
    found = search.run(int(0.7 * search.run(1 << 40).keeping.peak_bytes))
    assert found.fits
    blocks = [{found.choices[node] for node in own} for own in search.fold.members]
    assert max(map(len, blocks)) > 1, "of what memory is short for, some"
    exact = cost_of(posed.problem, found.choices)
    assert found.seconds == pytest.approx(exact + found.keeping.seconds)
    assert found.bound_s <= found.seconds


def test_where_nothing_fits_it_says_so() -> None:
    search = limited(posed_layers(Mesh(tp=2)), "adamw", 2)
    found = search.run(100)
    assert not found.fits
    assert found.keeping.peak_bytes >= search.state_bytes > 100
    assert found.solver == "bounds alone", "no program can find what cannot be"


@pytest.mark.parametrize("seed", range(8))
def test_a_limit_above_the_peak_gives_the_optimum(seed: int) -> None:
    model = RandomModel(seed, 6)
    posed = planner(model, model.inputs(), mesh=Mesh(tp=2)).posed
    search = limited(posed, "sgd")
    peak = search.run(1 << 40).keeping.peak_bytes
    assert search.run(peak).seconds == search.free.seconds
