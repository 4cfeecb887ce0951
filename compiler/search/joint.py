"""The fastest assignment within a memory limit, as one integer program.

The program of placements (``placement_program.py``) and of what is made again
(``memory_rows.py``) gets a row per moment at which memory turns out to be short: what
HiGHS finds for the rows so far is counted (``holdings.py``, ``keeping.py``), and where
it holds more than the limit, that moment's row is added: first for what the relaxed
program finds, rounded, until that adds none. Before the last, every optimum is a lower
bound: a row more can only cost. What fits and is optimal is the best of all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import highspy
import numpy as np

from partita.compiler.plan.document import boxing_key
from partita.compiler.search.fold import Fold
from partita.compiler.search.highs import make_highs, run_highs, run_relaxed
from partita.compiler.search.holdings import Holdings, find_holdings
from partita.compiler.search.keeping import Keeping, choose_keeping, keep
from partita.compiler.search.linear import Linear, value_of
from partita.compiler.search.memory_rows import MemoryRows
from partita.compiler.search.model import Bools
from partita.compiler.search.parts import OPTIMAL_GAP, Clock
from partita.compiler.search.placement_program import PlacementProgram
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import cost_of
from partita.compiler.search.timed_uses import Maker

_OBJECTIVE = 1e4  # what a known cost is scaled to: HiGHS has absolute tolerances
_GAP = 1e-7
_MOST_MOMENTS = 3  # whose rows are added at once
_FORESIGHT = 0.3  # of the time that is left, for relaxed programs before an integer one
_MOST_LIKELY = 4  # peaks of what is known, whose rows are there from the start


class Joint(NamedTuple):
    """An assignment with what it makes again, and the seconds of both."""

    choices: tuple[int, ...]
    keeping: Keeping
    seconds: float

    def cost(self, limit: int, over_s: float) -> float:
        """Return the seconds, and the price of what it holds more than a limit."""
        over = self.keeping.peak_bytes - limit
        return self.seconds if over <= 0 else self.seconds + over_s * (over / limit)


class JointOutcome(NamedTuple):
    """What was found that fits, if anything, and a lower bound on all that does.

    ``bound_s`` is infinite where nothing fits, or nothing that costs less than what
    was known.
    """

    found: Joint | None
    bound_s: float


@dataclass
class JointSearch:
    """The search of one problem under one limit.

    Attributes:
        posed: the problem.
        fold: which nodes choose alike.
        optimizer: what holds moments of every parameter.
        limit: the bytes that a rank may hold.
        allowed: which choices each class may take.
        threads: for HiGHS.
        over_s: the price of holding twice the limit; a part of it for a part of that.
        below_s: what takes more is not searched for.
        num_live: microbatches of which a rank holds what the backward needs.
    """

    posed: Posed
    fold: Fold
    optimizer: str
    limit: int
    allowed: Sequence[Bools]
    threads: int = 1
    over_s: float = inf
    below_s: float = inf
    num_live: int = 1

    def __post_init__(self) -> None:
        self.placed = PlacementProgram(self.fold, self.allowed)
        self.rows = MemoryRows(self.posed, self.placed, self.optimizer, self.num_live)
        self.program = self.placed.program
        self.over = Linear()
        if self.over_s < inf:
            self.over = self.program.column(self.over_s, above=inf)

    def run(
        self, moments: Collection[int], known: Joint | None, clock: Clock
    ) -> JointOutcome:
        """Search until the best is found or the time is over.

        Args:
            moments: whose rows to begin with.
            known: what fits already; only what costs less is searched for.
            clock: when to end.
        """
        best, bound = known, -inf
        if self.below_s < (self._cost(known) if known else inf):
            self.program.require(self.program.cost * (1.0 / self.below_s), most=1.0)
        there: set[int] = set()
        likely = _peaks(known.keeping, 0)[:_MOST_LIKELY] if known else []
        for moment in sorted({*moments, *likely}):
            self._add(moment, there)
        while clock.left_s > 0:
            self._foresee(best, there, clock)
            solved = self._solve(best, bound, clock)
            bound = max(bound, solved.bound_s)
            if solved.found is None:
                break
            found = solved.found
            offered = [one for one in (best, self._fit(found, clock), found) if one]
            cheapest = min(offered, key=self._cost)
            if self._cost(cheapest) < inf:
                best = cheapest
            if best and bound >= self._cost(best) * (1 - OPTIMAL_GAP):
                break
            if not self._add_peaks(found, there):
                break  # of rounding, or not searched to the end
        return JointOutcome(best, min(bound, self._cost(best) if best else inf))

    def keep(self, known: Joint, classes: Collection[int]) -> None:
        """Let what is made again be as it is known, but for that of some classes."""
        for maker, again in self.rows.again.items():
            node = maker if isinstance(maker, int) else maker[0]
            if self.fold.class_of[node] not in classes:
                taken = float(self._key(maker) in known.keeping.again)
                self.program.require(again, taken, taken)

    def _cost(self, joint: Joint) -> float:
        return joint.cost(self.limit, self.over_s)

    def _foresee(self, known: Joint | None, there: set[int], clock: Clock) -> None:
        """Add the rows that the relaxed program, rounded, turns out to be short of.

        An integer program takes a hundred times as long, and ends the sooner the more
        of the rows that it needs are there.
        """
        clock = Clock.of(_FORESIGHT * clock.left_s)
        while clock.left_s > 0:
            values = run_relaxed(self._solver(known, clock))
            if values is None:
                return
            rounded = self._read(values.tolist())
            if not self._add_peaks(rounded, there):
                return

    def _add_peaks(self, found: Joint, there: set[int]) -> bool:
        """Add rows for the moments at which too much is held; return if there are."""
        over = _peaks(found.keeping, self.limit)
        new = [moment for moment in over if moment not in there]
        for moment in new[:_MOST_MOMENTS]:
            self._add(moment, there)
        return bool(new)

    def _add(self, moment: int, there: set[int]) -> None:
        there.add(moment)
        held = self.rows.held_at(moment) * (1.0 / self.limit)
        self.program.require(held - self.over, most=1.0)

    def _solve(self, known: Joint | None, bound_s: float, clock: Clock) -> JointOutcome:
        """Search for the best that the rows so far allow.

        None takes less than ``bound_s``: one that takes no more ends it.
        """
        scale, highs = self._scale(known), self._solver(known, clock)
        if bound_s > 0:
            highs.setOptionValue("objective_target", bound_s * scale * (1 + _GAP))
        if known is not None:
            self._start(highs, known)
        values, bound = run_highs(highs)
        found = None if values is None else self._read(values.tolist())
        return JointOutcome(found, bound / scale)

    def _solver(self, known: Joint | None, clock: Clock) -> highspy.Highs:
        """Return HiGHS with the program, its rows so far."""
        highs = make_highs(clock.left_s, self.threads, _GAP)
        highs.setOptionValue("mip_abs_gap", _GAP * _OBJECTIVE)
        # To begin anew costs as much as it gains, or more, with so many columns that
        # are not integer.
        highs.setOptionValue("mip_allow_restart", False)
        highs.passModel(self.program.to_highs(self._scale(known)))
        return highs

    def _scale(self, known: Joint | None) -> float:
        usual = known.seconds if known else sum(self.program.costs)
        return _OBJECTIVE / max(usual, 1e-30)

    def _read(self, values: Sequence[float]) -> Joint:
        choices = self.placed.choices(values)
        again = {
            self._key(maker)
            for maker, column in self.rows.again.items()
            if value_of(column, values) > 0.5
        }
        return self.count(choices, again)

    def count(self, choices: Sequence[int], again: Collection[str]) -> Joint:
        """Return an assignment with what it makes again, counted."""
        held = self._held(choices)
        keeping = keep(held, again)
        seconds = cost_of(self.posed.problem, choices) + keeping.seconds
        return Joint(tuple(choices), keeping, seconds)

    def _held(self, choices: Sequence[int]) -> Holdings:
        return find_holdings(
            self.posed, choices, self.optimizer, num_live=self.num_live
        )

    def _fit(self, found: Joint, clock: Clock) -> Joint:
        """Let an assignment that holds too much make more again."""
        if found.keeping.peak_bytes <= self.limit:
            return found
        held = self._held(found.choices)
        keeping = choose_keeping(held, self.limit, Clock.of(max(clock.left_s, 1.0)))
        seconds = found.seconds - found.keeping.seconds + keeping.seconds
        return Joint(found.choices, keeping, seconds)

    def _key(self, maker: Maker) -> str:
        nodes = self.posed.problem.nodes
        if isinstance(maker, int):
            return nodes[maker].key
        index, result, want = maker
        return boxing_key(nodes[index].key, result, want)

    def _start(self, highs: highspy.Highs, known: Joint) -> None:
        """Give HiGHS the known choices; it works out the other columns."""
        columns: list[int] = []
        values: list[float] = []
        first = [members[0] for members in self.fold.members]
        for own, node in zip(self.placed.x, first, strict=True):
            for at, _, taken in own:
                columns += taken.terms
                values.append(float(at == known.choices[node]))
        for maker, again in self.rows.again.items():
            columns += again.terms
            values.append(float(self._key(maker) in known.keeping.again))
        highs.setSolution(len(columns), np.array(columns, np.int32), np.array(values))


def _peaks(keeping: Keeping, limit: int) -> list[int]:
    """Return the moments of more than a limit that are worst around them, first most.

    >>> moments, live = (0, 1, 2, 3, 4, 7), (3, 5, 4, 9, 9, 1)
    >>> _peaks(Keeping(frozenset(), 0.0, moments, live), 4)
    [3, 4, 1]
    """
    live = keeping.live
    over = [
        at
        for at, held in enumerate(live)
        if held > limit and held >= max(live[max(at - 1, 0) : at + 2])
    ]
    over.sort(key=lambda at: -live[at])
    return [keeping.moments[at] for at in over]
