"""The relaxation, the marginals and the frontier search against all assignments."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from functools import lru_cache
from itertools import pairwise, product
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.compiler.search.random_problems import random_problem

from partita.compiler.errors import NoSolution
from partita.compiler.search.build import build_model
from partita.compiler.search.fold import Fold
from partita.compiler.search.frontier import FrontierSearch
from partita.compiler.search.ilp import solve_ilp
from partita.compiler.search.local_search import LocalSearch
from partita.compiler.search.marginals import surpluses
from partita.compiler.search.model import DeadEnd, Model
from partita.compiler.search.ordering import frontier_order
from partita.compiler.search.parts import Clock, Effort, PartSearch, split
from partita.compiler.search.reduction import reduce_model
from partita.compiler.search.relaxation import Relaxation

# The gate tries the same each time, so that its tests may share the problems of few.
SEEDS = st.integers(0, 99 if settings().derandomize else 1 << 32)
ROUNDING = 1e-9


def hard_part(seed: int) -> Model:
    """Return what the reductions leave of a random problem, the first that has any."""
    return deepcopy(_hard_part(seed))


@lru_cache(maxsize=128)
def _hard_part(seed: int) -> Model:
    while True:
        seed += 1
        try:
            model = build_model(
                Fold.none(random_problem(seed, most_nodes=9, most_choices=4))
            )
            reduce_model(model)
        except (NoSolution, DeadEnd):
            continue
        for part in split(model):
            if len(part.costs) <= 7:
                return part


def assignments(model: Model) -> Iterator[tuple[dict[int, int], float]]:
    variables = sorted(model.costs)
    for choices in product(*(range(len(model.costs[v])) for v in variables)):
        positions = dict(zip(variables, choices, strict=True))
        yield positions, model.cost_of(positions)


@settings(max_examples=60)
@given(SEEDS)
def test_the_bound_rises_and_stays_below_the_best(seed: int) -> None:
    model = hard_part(seed)
    best = min(cost for _, cost in assignments(model))
    relaxation = Relaxation(model)
    bounds = [relaxation.bound]
    for _ in range(20):
        relaxation.sweep()
        bounds.append(relaxation.bound)
    relaxation.lean()
    bounds.append(relaxation.bound)
    assert all(after >= before - ROUNDING for before, after in pairwise(bounds))
    assert bounds[-1] <= best + ROUNDING


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 6))
def test_no_choice_costs_less_than_its_marginal(seed: int, sweeps: int) -> None:
    model = hard_part(seed)
    relaxation = Relaxation(model)
    for _ in range(sweeps):
        relaxation.sweep()
    least = surpluses(relaxation)
    for positions, cost in assignments(model):
        for variable, position in positions.items():
            surplus = least[variable][position]
            assert relaxation.bound + surplus <= cost + ROUNDING


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 6))
def test_what_is_pruned_costs_too_much_and_the_bound_stays(
    seed: int, sweeps: int
) -> None:
    model = hard_part(seed)
    best, cost = min(assignments(model), key=lambda item: item[1])
    assume(cost < inf)
    chosen = {v: int(model.domains[v][p]) for v, p in best.items()}
    relaxation = Relaxation(model)
    for _ in range(sweeps):
        relaxation.sweep()
    bound = relaxation.bound
    limit = cost - bound + ROUNDING
    relaxation.restrict({v: s <= limit for v, s in surpluses(relaxation).items()})
    assert relaxation.bound == bound
    left = {v: list(domain).index(chosen[v]) for v, domain in model.domains.items()}
    assert model.cost_of(left) == pytest.approx(cost)
    relaxation.sweep()
    assert bound - ROUNDING <= relaxation.bound <= cost + ROUNDING


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 6), st.booleans())
def test_a_frontier_with_room_finds_the_best(
    seed: int, sweeps: int, lean: bool
) -> None:
    model = hard_part(seed)
    best = min(cost for _, cost in assignments(model))
    order = frontier_order(model)
    relaxation = Relaxation(model)
    relaxation.follow(order)
    for _ in range(sweeps):
        relaxation.sweep()
    if lean:
        relaxation.lean()
    search = FrontierSearch(model, relaxation, order)
    passed = search.run(1e9, 1_000_000, lambda: False)
    assert passed.least_open == inf
    if best == inf:
        assert passed.positions is None
        return
    assert passed.positions is not None
    assert model.cost_of(passed.positions) == pytest.approx(best)
    below = search.run(best - relaxation.bound - 1e-6, 1_000_000, lambda: False)
    assert below.positions is None


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 5))
def test_a_crowded_frontier_says_what_it_left_open(seed: int, most: int) -> None:
    model = hard_part(seed)
    best = min(cost for _, cost in assignments(model))
    order = frontier_order(model)
    relaxation = Relaxation(model)
    relaxation.sweep()
    passed = FrontierSearch(model, relaxation, order).run(1e9, most, lambda: False)
    found = inf if passed.positions is None else model.cost_of(passed.positions)
    assert found >= best - ROUNDING
    assert min(found, relaxation.bound + passed.least_open) <= best + ROUNDING


@settings(max_examples=60)
@given(SEEDS)
def test_a_local_optimum_has_no_better_neighbour(seed: int) -> None:
    model = hard_part(seed)
    start = dict.fromkeys(model.costs, 0)
    positions, cost = LocalSearch(model).improve(start)
    assert cost == model.cost_of(positions) <= model.cost_of(start)
    for variable, choices in model.costs.items():
        for other in range(len(choices)):
            near = model.cost_of({**positions, variable: other})
            assert near >= cost * (1 - ROUNDING)


@settings(max_examples=60)
@given(SEEDS, st.integers(0, 6), st.booleans())
def test_the_integer_program_finds_the_best(
    seed: int, sweeps: int, knows: bool
) -> None:
    model = hard_part(seed)
    best = min(cost for _, cost in assignments(model))
    relaxation = Relaxation(model)
    for _ in range(sweeps):
        relaxation.sweep()
    start, cost = LocalSearch(model).improve(dict.fromkeys(model.costs, 0))
    if not knows:
        cost = inf
    outcome = solve_ilp(model, relaxation, start, cost, time_limit_s=30.0, threads=1)
    if best == inf:
        assert outcome.positions is None
        assert outcome.bound == inf
        return
    assert outcome.positions is not None
    assert model.cost_of(outcome.positions) == pytest.approx(best, rel=1e-7)
    assert outcome.bound == pytest.approx(best, rel=1e-6, abs=1e-9)


@settings(max_examples=60)
@given(SEEDS, st.sampled_from([(), (1,), (2, 4)]), st.sampled_from([1, 2]))
def test_the_integer_program_finishes_what_the_frontier_left(
    seed: int, states: tuple[int, ...], threads: int
) -> None:
    model = hard_part(seed)
    best = min(cost for _, cost in assignments(model))
    search = PartSearch(model, Clock.of(30.0), Effort(states, threads))
    try:
        search.run()
    except DeadEnd:
        assert best == inf
        return
    assert search.is_optimal
    assert search.cost == pytest.approx(best, rel=1e-7)
    assert search.bound <= best * (1 + ROUNDING)


@settings(max_examples=60)
@given(SEEDS, st.sampled_from([(), (1,)]))
def test_a_rough_search_ends_without_the_integer_program(
    seed: int, states: tuple[int, ...]
) -> None:
    model = hard_part(seed)
    best = min(cost for _, cost in assignments(model))
    search = PartSearch(model, Clock.of(30.0), Effort(states, 0))
    try:
        search.run()
    except DeadEnd:
        assert best == inf
        return
    assert not search.used_ilp
    assert search.bound <= best * (1 + ROUNDING)
    assert best <= search.cost * (1 + ROUNDING)
