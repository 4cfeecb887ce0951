"""Find the cheapest assignment, or a good one and how far it can be from the best.

1. Exact reductions (``reduction.py``) of the whole; the rest falls into parts that
   know nothing of each other. Then, for each part (``parts.py``), again and again:
2. a lower bound and assignments that follow it, improved by local search
   (``relaxation.py``, ``local_search.py``);
3. choices that cannot belong to anything better than what is known go
   (``marginals.py``), and when many went, the reductions start over;
4. dynamic programming along an order of the variables, bounded by both
   (``frontier.py``, ``ordering.py``), with ever more room. It proves the optimum
   unless it runs out of room; then
5. what is left goes to HiGHS as an integer program (``ilp.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Literal

import highspy

from partita.compiler.errors import NoSolution
from partita.compiler.search.build import build_model
from partita.compiler.search.fold import Fold
from partita.compiler.search.leaving import settled
from partita.compiler.search.model import DeadEnd
from partita.compiler.search.parts import THOROUGH, Clock, Effort, PartSearch, split
from partita.compiler.search.problem import Problem
from partita.compiler.search.reduction import reduce_model

HIGHS = f"HiGHS {highspy.Highs().version()}"


@dataclass(frozen=True, slots=True)
class Solution:
    """An assignment, its cost, and what is known about the best one.

    Attributes:
        choices: one choice index per node.
        seconds: ``cost_of`` the choices.
        status: "optimal" when no assignment is cheaper by more than 1e-6 of the cost;
            when that could not be shown "time-limit", or, where there was time and
            no more effort asked for, or a memory limit, "not shown to be optimal".
        gap: (seconds - bound_s) / seconds.
        bound_s: no assignment costs less, with prices of memory if there are any.
        solver: what it took: "bounds alone" (steps 1 to 4), or "HiGHS 1.15.1" too.
    """

    choices: tuple[int, ...]
    seconds: float
    status: Literal["optimal", "time-limit", "not shown to be optimal"]
    gap: float
    bound_s: float
    solver: str


def solve(
    problem: Problem,
    time_limit_s: float,
    fold: Fold | None = None,
    effort: Effort = THOROUGH,
) -> Solution:
    """Return the cheapest assignment found within the time limit.

    Args:
        problem: the problem.
        time_limit_s: how long to search.
        fold: which nodes are to choose alike; bound and status are then those of the
            assignments in which they do. Unless given, every node is by itself.
        effort: how far to go for what is not settled soon.

    Raises:
        NoSolution: when the choices, ties and boxings allow no assignment.
    """
    clock = Clock.of(time_limit_s)
    fold = fold or Fold.none(problem)
    model = build_model(fold)
    try:
        reduce_model(model)
        # the small ones first: the last may use up the time
        parts = sorted(split(model), key=lambda part: part.num_choices)
        searches = [PartSearch(part, clock, effort) for part in parts]
        for search in searches:
            search.run()
    except DeadEnd as dead_end:
        key = _key(fold, dead_end.variable)
        raise NoSolution(
            f"{key}: no signature is possible together with what the pins, ties and "
            "other nodes leave; pin fewer nodes"
        ) from None
    chosen: dict[int, int] = {}
    for search in searches:
        if search.assignment is None:
            raise NoSolution(_nothing_found(search, time_limit_s))
        chosen.update(search.assignment)
    full = model.extend(chosen)
    by_class = [full[number] for number in range(len(fold.members))]
    choices = fold.unfold(settled(fold, by_class))
    seconds = fold.cost_of(choices)
    assert seconds < inf
    bound_s = model.constant + sum(search.bound for search in searches)
    if problem.held is None:  # else memory is in the bound too, and not in the seconds
        bound_s = min(seconds, bound_s)
    is_optimal = all(search.is_optimal for search in searches)
    used_ilp = any(search.used_ilp for search in searches)
    return Solution(
        choices=choices,
        seconds=seconds,
        status="optimal" if is_optimal else _status(clock),
        gap=(seconds - bound_s) / seconds if seconds > 0 else 0.0,
        bound_s=bound_s,
        solver=HIGHS if used_ilp else "bounds alone",
    )


def _status(clock: Clock) -> Literal["time-limit", "not shown to be optimal"]:
    return "time-limit" if clock.left_s <= 0 else "not shown to be optimal"


def _key(fold: Fold, variable: int) -> str:
    """Return the key of a node that a variable stands for."""
    return fold.problem.nodes[fold.members[variable % len(fold.members)][0]].key


def _nothing_found(search: PartSearch, time_limit_s: float) -> str:
    if search.bound == inf:
        return "the pins and ties contradict each other; pin fewer nodes"
    return (
        f"no assignment was found in {time_limit_s:g} s, which does not mean that "
        "there is none; give the search more time"
    )
