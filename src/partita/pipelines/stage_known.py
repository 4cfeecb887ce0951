"""What is known of a stage that was searched, or was not worth it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from partita.compiler.plan.plan import Plan
from partita.compiler.search.stage_cost import StageCost
from partita.compiler.search.wanted import Wanted
from partita.one_mesh.decided import Decided


@dataclass(frozen=True)
class Known:
    """What a stage takes, and what was decided for that.

    A rank is done with it so many seconds earlier, ``hidden_s``, than it would be if
    no message passed while it computes.
    """

    cost: StageCost
    decided: Decided
    hidden_s: float

    @classmethod
    def of(cls, plan: Plan, cost: StageCost, decided: Decided) -> Known:
        """Return what is known of a planned stage."""
        taken = plan.predicted
        one_by_one_s = taken.seconds + sum(taken.hidden_by_part.values())
        hidden_s = one_by_one_s - cost.busy_s(plan.microbatches)
        return cls(cost, decided, max(hidden_s, 0.0))


@dataclass(frozen=True, slots=True)
class Unknown:
    """No plan was found that takes less than ``below_s``."""

    below_s: float = inf


def answers(known: Known | Unknown, wanted: Wanted) -> bool:
    """Whether no more needs to be searched, as far as the search was no rougher.

    What is wanted of a stage is a plan that keeps a rank busy for less.

    >>> from partita.compiler.search.wanted import ANY
    >>> answers(Unknown(2.0), Wanted(1.0)), answers(Unknown(2.0), ANY)
    (True, False)
    """
    return isinstance(known, Known) or wanted.below_s <= known.below_s
