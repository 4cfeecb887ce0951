from __future__ import annotations

from itertools import product
from math import inf

import numpy as np
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
from partita.compiler.search.build import build_model
from partita.compiler.search.fold import Fold
from partita.compiler.search.model import DeadEnd, Model, Port, Star
from partita.compiler.search.problem import Problem, cost_of
from partita.compiler.search.reduction import reduce_model

SEEDS = st.integers(0, 1 << 32)


def best_of(model: Model) -> tuple[dict[int, int], float]:
    """Return the best original choices of what is left, and their cost."""
    variables = sorted(model.costs)
    ranges = (range(len(model.costs[v])) for v in variables)
    found = [
        dict(zip(variables, positions, strict=True)) for positions in product(*ranges)
    ]
    positions = min(found, key=model.cost_of)
    chosen = {v: int(model.domains[v][p]) for v, p in positions.items()}
    return chosen, model.cost_of(positions)


@settings(max_examples=300)
@given(SEEDS)
def test_the_best_of_what_is_left_is_the_best_of_all(seed: int) -> None:
    posed = random_problem(seed)
    best = min(all_costs(posed).values())
    try:
        model = build_model(Fold.none(posed))
        reduce_model(model)
    except (NoSolution, DeadEnd):
        assert best == inf
        return
    chosen, cost = best_of(model)
    assert cost == pytest.approx(best, rel=1e-12)
    full = model.extend(chosen)
    if best < inf:
        choices = tuple(full[index] for index in range(len(posed.nodes)))
        assert cost_of(posed, choices) == pytest.approx(best, rel=1e-12)


@given(SEEDS)
def test_the_model_prices_as_the_problem_does(seed: int) -> None:
    posed = random_problem(seed, most_nodes=4)
    try:
        model = build_model(Fold.none(posed))
    except NoSolution:
        return
    for choices, cost in all_costs(posed).items():
        assert model.cost_of(dict(enumerate(choices))) == pytest.approx(cost, rel=1e-12)


def reduced(posed: Problem) -> Model:
    model = build_model(Fold.none(posed))
    reduce_model(model)
    return model


def test_a_tree_vanishes() -> None:
    swap = (choice("B", "S(0)", 1.0), choice("S(0)", "B", 2.0))
    chain = [node("n0", (), choice("", "B", 1.0), choice("", "S(0)", 0.5))]
    chain += [node(f"n{i}", ((i - 1, 0),), *swap) for i in range(1, 30)]
    model = reduced(problem(*chain, box=0.25))
    assert not model.costs
    full = model.extend({})
    choices = tuple(full[index] for index in range(30))
    assert cost_of(problem(*chain, box=0.25), choices) == pytest.approx(model.constant)


def test_a_dearer_choice_of_the_same_signature_goes() -> None:
    maker = node("maker", (), choice("", "B", 2.0), choice("", "B", 1.0))
    takers = [
        node(f"t{i}", ((0, 0),), choice("B", "B", 1.0), choice("S(0)", "B", 0.5))
        for i in range(3)
    ]
    model = reduced(problem(maker, *takers, box=0.75))
    assert model.extend({v: int(d[0]) for v, d in model.domains.items()})[0] == 1


def test_a_dead_end_names_its_variable() -> None:
    maker = node("maker", (), choice("", "B", 0.0))
    taker = node("taker", ((0, 0),), choice("S(0)", "B", 0.0))
    with pytest.raises(DeadEnd) as error:
        reduced(problem(maker, taker, box=inf))
    assert error.value.variable in (0, 1)


def test_a_taker_may_be_left_with_nothing_that_it_wants() -> None:
    """Its dear choices go in the round in which the maker is looked at after it."""
    model, maker = Model(), 3
    sets = np.array([[False, False], [True, False], [False, True]])
    for taker, dear in enumerate((9.0, 0.5, 0.5)):
        model.add_variable(taker, np.array([0.0, dear, dear]) - dear / 9, np.arange(3))
    model.add_variable(maker, np.array([0.0, 0.25]), np.arange(2))
    boxing = np.array([[0.5, 1.0], [1.0, 0.5]])
    ports = {taker: Port(sets, np.arange(3)) for taker in range(3)}
    model.add_star(0, Star(maker, np.arange(2), boxing, ports))
    _, best = best_of(model)
    reduce_model(model)
    assert best_of(model)[1] == pytest.approx(best, rel=1e-12)


def test_tables_that_lose_no_class_stay_the_same_arrays() -> None:
    model = Model()
    for variable in range(3):
        model.add_variable(variable, np.zeros(3), np.arange(3))
    classes = np.array([0, 1, 0])
    table, boxing, sets = np.eye(2), np.eye(2), np.eye(2, dtype=np.bool_)
    model.add_edge(0, 1, table, classes, classes)
    ports = {v: Port(sets, classes) for v in (1, 2)}
    model.add_star(0, Star(0, classes, boxing, ports))
    for variable in range(3):
        model.restrict(variable, np.array([True, True, False]))
    edge, star = model.edges[0][1], model.stars[0]
    assert edge.table is table
    assert star.boxing is boxing
    assert all(port.sets is sets for port in star.ports.values())
    for variable in range(3):
        model.restrict(variable, np.array([True, False]))
    assert edge.table.shape == star.boxing[:, :1].shape == (1, 1)
    assert all(len(port.sets) == 1 for port in star.ports.values())
    assert table.shape == boxing.shape == sets.shape == (2, 2)
