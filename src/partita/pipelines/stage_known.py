"""What is known of a stage that was searched, or was not worth it."""

from __future__ import annotations

from dataclasses import dataclass

from partita.compiler.plan.plan import Plan
from partita.compiler.search.stage_cost import StageCost
from partita.compiler.search.wanted import Wanted
from partita.one_mesh.decided import Decided


@dataclass(frozen=True)
class Known:
    """What a stage takes, and what was decided for that.

    A rank is done with it so many seconds earlier, ``hidden_s``, than it would be if
    no message passed while it computes. ``is_shown`` says whether no plan of it that
    fits takes less.
    """

    cost: StageCost
    decided: Decided
    hidden_s: float
    is_shown: bool

    @classmethod
    def of(cls, plan: Plan, cost: StageCost, decided: Decided, is_shown: bool) -> Known:
        """Return what is known of a planned stage."""
        taken = plan.predicted
        one_by_one_s = taken.seconds + sum(taken.hidden_by_part.values())
        hidden_s = one_by_one_s - cost.busy_s(plan.microbatches)
        return cls(cost, decided, max(hidden_s, 0.0), is_shown)


@dataclass(frozen=True, slots=True)
class Unknown:
    """No plan was found that takes less than ``below_s``; or it is shown: none does."""

    below_s: float
    is_shown: bool


def answers(known: Known | Unknown, wanted: Wanted) -> bool:
    """Whether no more needs to be searched, as far as the search was no rougher.

    What is wanted of a stage is a plan that keeps a rank busy for less.

    >>> from partita.compiler.search.wanted import ANY
    >>> unknown = Unknown(2.0, is_shown=True)
    >>> answers(unknown, Wanted(1.0)), answers(unknown, ANY)
    (True, False)
    """
    return isinstance(known, Known) or wanted.below_s <= known.below_s
