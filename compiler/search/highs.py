"""HiGHS, set up alike for every integer program."""

from __future__ import annotations

import highspy


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
