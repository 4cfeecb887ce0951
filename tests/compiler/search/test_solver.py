from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.compiler.search.random_problems import (
    all_costs,
    choice,
    node,
    problem,
    random_problem,
)

from partita.compiler.errors import NoSolution
from partita.compiler.search.problem import Tie, cost_of
from partita.compiler.search.solver import solve

SEEDS = st.integers(0, 1 << 32)


@settings(max_examples=300)
@given(SEEDS)
def test_as_cheap_as_the_best_of_all_assignments(seed: int) -> None:
    posed = random_problem(seed)
    best = min(all_costs(posed).values())
    if best == inf:
        with pytest.raises(NoSolution):
            solve(posed, 30.0)
        return
    solution = solve(posed, 30.0)
    assert solution.status == "optimal"
    assert solution.seconds == pytest.approx(best, rel=1e-7)
    assert solution.seconds == cost_of(posed, solution.choices)
    assert solution.bound_s <= best
    assert 0.0 <= solution.gap <= 1e-6


@pytest.mark.parametrize("seed", range(20))
def test_equal_problems_have_equal_solutions(seed: int) -> None:
    try:
        first = solve(random_problem(seed, 30), 30.0)
    except NoSolution:
        return
    assert solve(random_problem(seed, 30), 30.0).choices == first.choices


@pytest.mark.parametrize("seed", [0, 1, 30, 58])
def test_without_time_a_gap_is_reported_and_the_bound_is_true(seed: int) -> None:
    posed = random_problem(seed, 60, 8)
    hurried, best = solve(posed, 0.0), solve(posed, 60.0)
    assert best.status == "optimal"
    assert hurried.status == "time-limit"
    assert hurried.gap > 0.0
    assert hurried.bound_s <= best.seconds <= hurried.seconds
    assert hurried.gap == pytest.approx(1 - hurried.bound_s / hurried.seconds)
    assert hurried.seconds == cost_of(posed, hurried.choices)


def test_separate_parts_are_solved_together() -> None:
    nodes = [
        node(f"n{i}", (), choice("", "B", 2.0), choice("", "B", 1.0)) for i in "ab"
    ]
    solution = solve(problem(*nodes), 1.0)
    assert solution.choices == (1, 1)
    assert solution.seconds == 2.0


def test_nothing_to_decide() -> None:
    solution = solve(problem(), 1.0)
    assert (solution.choices, solution.seconds, solution.gap) == ((), 0.0, 0.0)
    assert solution.status == "optimal"


def test_a_node_without_choices() -> None:
    with pytest.raises(NoSolution) as error:
        solve(problem(node("mlp.fc", ())), 1.0)
    assert str(error.value) == "mlp.fc: no signature is left to choose from"


def test_a_tie_that_cannot_hold() -> None:
    stored = node("w", (), choice("", "S(0)", 0.0), choice("", "S(1)", 0.0))
    gradient = node("w.grad", ((0, 0),), choice("B", "B", 0.0))
    with pytest.raises(NoSolution) as error:
        solve(problem(stored, gradient, ties=(Tie(0, 1),)), 1.0)
    assert str(error.value) == (
        "w.grad must hand on what it takes in the placement of w, "
        "but takes only (B,) and that can be only (S(0),), (S(1),)"
    )


def test_ties_that_contradict_each_other() -> None:
    first = node("first", (), choice("", "B", 0.0), choice("", "S(0)", 0.0))
    second = node("second", (), choice("", "B", 0.0), choice("", "S(0)", 0.0))
    swap = (choice("B", "S(0)", 0.0), choice("S(0)", "B", 0.0))
    nodes = (first, second, node("a", ((0, 0),), *swap), node("b", ((1, 0),), *swap))
    same = node("c", ((0, 0),), choice("B", "B", 0.0), choice("S(0)", "S(0)", 0.0))
    ties = (Tie(0, 2), Tie(2, 3), Tie(0, 4), Tie(4, 3))
    with pytest.raises(NoSolution) as error:
        solve(problem(*nodes, same, ties=ties), 1.0)
    assert (
        str(error.value) == "the pins and ties contradict each other; pin fewer nodes"
    )


def test_a_boxing_that_does_not_exist() -> None:
    maker = node("maker", (), choice("", "B", 0.0))
    taker = node("taker", ((0, 0),), choice("S(0)", "B", 0.0))
    with pytest.raises(NoSolution) as error:
        solve(problem(maker, taker, box=inf), 1.0)
    assert str(error.value) == (
        "taker: no signature is possible together with what the pins, ties and other "
        "nodes leave; pin fewer nodes"
    )
