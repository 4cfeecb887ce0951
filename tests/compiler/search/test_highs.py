"""Solvers of one process may have other numbers of threads."""

from __future__ import annotations

from math import inf

import highspy
import pytest

from partita.compiler.search.highs import make_highs


def solved(threads: int) -> float:
    """Return the least of x + 2y over integers with x + y >= 3 and x <= 2."""
    highs = make_highs(10.0, threads, 0.0)
    highs.addVars(2, [0.0, 0.0], [2.0, inf])
    for column, cost in enumerate((1.0, 2.0)):
        highs.changeColCost(column, cost)
        highs.changeColIntegrality(column, highspy.HighsVarType.kInteger)
    highs.addRow(3.0, inf, 2, [0, 1], [1.0, 1.0])
    assert highs.run() == highspy.HighsStatus.kOk
    return highs.getInfo().objective_function_value


def test_threads_may_change_from_solver_to_solver() -> None:
    for threads in (2, 1, 2):
        assert solved(threads) == pytest.approx(4.0)
