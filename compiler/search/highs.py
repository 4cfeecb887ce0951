"""HiGHS, set up, given its program and asked alike for every integer program."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from typing import NamedTuple

import highspy
import numpy as np

from partita.compiler.search.model import Floats, Ints

# highspy's types leave it out.
IMPLIED = highspy.HighsVarType.__members__["kImplicitInteger"]
"""The kind of a column that is a whole number once others are."""


class Rows(NamedTuple):
    """Sums of columns, each ``least <= sum <= most``.

    Those of row r stand in ``columns`` and ``factors`` from ``starts[r]`` to
    ``starts[r + 1]``.
    """

    starts: Ints
    columns: Ints
    factors: Floats
    least: Floats
    most: Floats


class Found(NamedTuple):
    """What HiGHS found: a value per column, if any, and a lower bound on the cost.

    ``bound`` is infinite when the program has no solution at all.
    """

    values: Floats | None
    bound: float


def make_highs(time_limit_s: float, threads: int, gap: float) -> highspy.Highs:
    """Return a quiet solver.

    Args:
        time_limit_s: when it gives up; then it may have found something.
        threads: for all solvers of the process from now on.
        gap: the part of the objective that may be left to gain.
    """
    # The threads are the process's: a solver that asks for another number refuses to
    # run, unless the scheduler begins anew.
    highspy.Highs.resetGlobalScheduler(True)
    highs = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", threads),
        ("time_limit", max(time_limit_s, 0.01)),
        ("mip_rel_gap", gap),
        ("mip_feasibility_tolerance", 1e-7),
        ("primal_feasibility_tolerance", 1e-8),
        ("dual_feasibility_tolerance", 1e-8),
    ):
        status = highs.setOptionValue(option, value)
        assert status == highspy.HighsStatus.kOk, option
    return highs


def make_lp(
    costs: Floats,
    above: Floats,
    integers: Sequence[int],
    rows: Rows,
    implied: Sequence[int] = (),
) -> highspy.HighsLp:
    """Return a program to minimize.

    Args:
        costs: per column.
        above: the most that each column may be; the least is 0.
        integers: the columns that are whole numbers.
        rows: what must hold.
        implied: further columns that are whole numbers in some best solution, once
            ``integers`` are. They need no branching; that they are whole gives cuts.
    """
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(costs), len(rows.least)
    lp.col_cost_ = costs
    lp.col_lower_, lp.col_upper_ = np.zeros(len(costs)), above
    lp.row_lower_, lp.row_upper_ = rows.least, rows.most
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = rows.starts
    lp.a_matrix_.index_ = rows.columns
    lp.a_matrix_.value_ = rows.factors
    kinds = [highspy.HighsVarType.kContinuous] * len(costs)
    for column in integers:
        kinds[column] = highspy.HighsVarType.kInteger
    for column in implied:
        kinds[column] = IMPLIED
    lp.integrality_ = kinds
    return lp


def run_highs(highs: highspy.Highs) -> Found:
    """Let a solver search the program that it has."""
    status = highs.run()
    assert status != highspy.HighsStatus.kError, "HiGHS refused the program"
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return Found(None, inf)
    info = highs.getInfo()
    bound = info.mip_dual_bound if isfinite(info.mip_dual_bound) else -inf
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Found(None, bound)
    return Found(np.array(highs.getSolution().col_value), bound)


def run_relaxed(highs: highspy.Highs) -> Floats | None:
    """Let a solver take parts of whole numbers; return the best so, if it ends."""
    highs.setOptionValue("solve_relaxation", True)
    status = highs.run()
    assert status != highspy.HighsStatus.kError, "HiGHS refused the program"
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return np.array(highs.getSolution().col_value)
