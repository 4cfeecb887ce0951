"""Programs as HiGHS gets them, and solvers of one process with other threads."""

from __future__ import annotations

from math import inf

import highspy
import numpy as np
import pytest

from partita.compiler.search.highs import (
    Found,
    Rows,
    make_highs,
    make_lp,
    run_highs,
    run_relaxed,
)


def program(threads: int = 1, least: float = 2.5) -> highspy.Highs:
    """Ask for the least of x + 2y over x + y >= ``least``, x <= 1.5, y an integer."""
    rows = Rows(
        np.array([0, 2]),
        np.array([0, 1]),
        np.array([1.0, 1.0]),
        np.array([least]),
        np.array([inf]),
    )
    highs = make_highs(10.0, threads, 0.0)
    highs.passModel(make_lp(np.array([1.0, 2.0]), np.array([1.5, 9.0]), [1], rows))
    return highs


def solved(threads: int = 1, least: float = 2.5) -> Found:
    return run_highs(program(threads, least))


def test_only_the_integer_columns_are_whole_numbers() -> None:
    values, bound = solved(least=2.25)
    assert values is not None
    assert values.tolist() == pytest.approx([1.25, 1.0])
    assert bound == pytest.approx(3.25)


def test_what_has_no_solution_is_bounded_by_nothing() -> None:
    assert solved(least=11.0) == Found(None, inf)


def test_threads_may_change_from_solver_to_solver() -> None:
    for threads in (2, 1, 2):
        assert solved(threads).bound == pytest.approx(3.5)


def test_relaxed_no_column_is_a_whole_number() -> None:
    values = run_relaxed(program(least=2.25))
    assert values is not None
    assert values.tolist() == pytest.approx([1.5, 0.75])
    assert run_relaxed(program(least=11.0)) is None
