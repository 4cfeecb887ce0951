from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from tests.compiler.search.random_problems import choice, node, problem

from partita.compiler.search.problem import Tie, cost_of


def test_consumers_of_one_placement_share_a_boxing() -> None:
    maker = node("maker", (), choice("", "B", 1.0))
    takers = [node(f"taker{i}", ((0, 0),), choice("S(0)", "B", 0.5)) for i in (1, 2)]
    other = node("other", ((0, 0),), choice("S(1)", "B", 0.5))
    shared = problem(maker, *takers, box=10.0)
    assert cost_of(shared, (0, 0, 0)) == 1.0 + 2 * 0.5 + 10.0
    assert cost_of(problem(maker, *takers, other, box=10.0), (0, 0, 0, 0)) == 22.5


def test_the_placement_it_is_made_in_is_free() -> None:
    maker = node("maker", (), choice("", "B", 1.0), choice("", "S(0)", 2.0))
    taker = node("taker", ((0, 0), (0, 0)), choice("S(0), S(0)", "B", 0.0))
    assert cost_of(problem(maker, taker, box=10.0), (1, 0)) == 2.0
    assert cost_of(problem(maker, taker, box=10.0), (0, 0)) == 11.0


def test_a_broken_tie_costs_infinitely_much() -> None:
    stored = node("w", (), choice("", "B", 0.0), choice("", "S(0)", 0.0))
    gradient = node("w.grad", ((0, 0),), choice("B", "B", 1.0))
    tied = problem(stored, gradient, ties=(Tie(0, 1),))
    assert cost_of(tied, (0, 0)) == 1.0
    assert cost_of(tied, (1, 0)) == inf


def test_a_boxing_that_does_not_exist_costs_infinitely_much() -> None:
    maker = node("maker", (), choice("", "B", 0.0))
    taker = node("taker", ((0, 0),), choice("S(0)", "B", 0.0))
    assert cost_of(problem(maker, taker, box=inf), (0, 0)) == inf


def test_a_node_must_not_use_itself() -> None:
    with pytest.raises(AssertionError, match="loop uses itself"):
        problem(node("loop", ((0, 0),), choice("B", "B", 0.0)))


@pytest.mark.parametrize("result", [-1, 1])
def test_a_node_uses_what_another_makes(result: int) -> None:
    maker = node("maker", (), choice("", "B", 0.0))
    taker = node("taker", ((0, result),), choice("B", "B", 0.0))
    last = node("last", ((1, 0),), choice("B", "B", 0.0))
    with pytest.raises(AssertionError, match="taker uses what nobody makes"):
        problem(maker, taker, last)


def test_a_node_uses_no_number() -> None:
    maker = replace(node("maker", (), choice("", "B", 0.0)), result_types=(None,))
    with pytest.raises(AssertionError, match="taker uses what is no tensor"):
        problem(maker, node("taker", ((0, 0),), choice("B", "B", 0.0)))
