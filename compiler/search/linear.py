"""Linear expressions of 0-1 variables, and integer programs written in them.

An expression that stands for "yes" or "no" is 1 or 0 wherever the integer variables
are integer, or may as well be. HiGHS is told so of its column: it need not branch on
it, and can cut off more of what lies between. ``either`` and ``both`` make such
expressions of others; what no program would rather have at 1 needs a floor alone, for
the rest ``is_exact`` adds a ceiling. What is asked of the same expressions again is the
same column.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

import highspy
import numpy as np

from partita.compiler.search.highs import Rows, make_lp


@dataclass(frozen=True, slots=True)
class Linear:
    """``constant`` plus ``terms``: a factor per column of a program."""

    constant: float = 0.0
    terms: dict[int, float] = field(default_factory=dict[int, float])

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for column, factor in other.terms.items():
            terms[column] = terms.get(column, 0.0) + factor
        return Linear(self.constant + other.constant, terms)

    def __mul__(self, factor: float) -> Linear:
        terms = {column: own * factor for column, own in self.terms.items()}
        return Linear(self.constant * factor, terms)

    def __sub__(self, other: Linear) -> Linear:
        return self + other * -1.0

    @property
    def is_no(self) -> bool:
        """Whether it is nothing but 0."""
        return not self.terms and self.constant == 0.0

    @property
    def is_yes(self) -> bool:
        """Whether it is nothing but 1."""
        return not self.terms and self.constant == 1.0

    @property
    def is_plain(self) -> bool:
        """Whether it cannot be negative."""
        return self.constant == 0.0 and min(self.terms.values(), default=0.0) >= 0.0

    @property
    def key(self) -> Hashable:
        """What equal expressions have in common."""
        return self.constant, frozenset(self.terms.items())


NO, YES = Linear(), Linear(1.0)


def total(parts: Iterable[Linear]) -> Linear:
    """Return the sum of expressions."""
    constant, terms = 0.0, dict[int, float]()
    for part in parts:
        constant += part.constant
        for column, factor in part.terms.items():
            terms[column] = terms.get(column, 0.0) + factor
    return Linear(constant, terms)


class LinearProgram:
    """Columns between 0 and an upper limit, their costs, and rows that bound sums."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.integers: list[int] = []
        self._implied: list[int] = []
        self._above: list[float] = []
        self._starts = [0]
        self._columns: list[int] = []
        self._factors: list[float] = []
        self._least: list[float] = []
        self._most: list[float] = []
        self._named: dict[Hashable, Linear] = {}

    @property
    def num_columns(self) -> int:
        """How many columns there are."""
        return len(self.costs)

    @property
    def cost(self) -> Linear:
        """What is to be as little as possible."""
        return Linear(0.0, {at: cost for at, cost in enumerate(self.costs) if cost})

    def column(self, cost: float = 0.0, above: float = 1.0) -> Linear:
        """Add a column; one of at most 1 is "yes" or "no", where choices are."""
        if above == 1.0:
            self._implied.append(len(self.costs))
        return self._column(cost, above)

    def choice(self, cost: float = 0.0) -> Linear:
        """Add a column that is 0 or 1."""
        self.integers.append(len(self.costs))
        return self._column(cost, 1.0)

    def _column(self, cost: float, above: float) -> Linear:
        self.costs.append(cost)
        self._above.append(above)
        return Linear(0.0, {len(self.costs) - 1: 1.0})

    def charge(self, what: Linear, cost: float) -> None:
        """Let an expression cost something; its constant part is left out."""
        for column, factor in what.terms.items():
            self.costs[column] += cost * factor

    def require(self, what: Linear, least: float = -inf, most: float = inf) -> None:
        """Add a row ``least <= what <= most``."""
        self._columns += what.terms
        self._factors += what.terms.values()
        self._starts.append(len(self._columns))
        self._least.append(least - what.constant)
        self._most.append(most - what.constant)

    def named(self, what: Linear) -> Linear:
        """Return a column that equals an expression of several: a "yes" or "no"."""
        if len(what.terms) <= 1:
            return what
        one = self.column()
        self.require(what - one, 0.0, 0.0)
        return one

    def either(self, parts: Iterable[Linear], is_exact: bool = False) -> Linear:
        """Return 1 where one of the parts is."""
        found = [part for part in parts if not part.is_no]
        for part in found:
            if part.is_yes:
                return YES
        if not found:
            return NO
        if len(found) == 1 and found[0].is_plain:
            return found[0]
        key = is_exact, frozenset(part.key for part in found)
        if key in self._named:
            return self._named[key]
        one = self._named[key] = self.column()
        for part in found:
            self.require(one - part, 0.0)
        if is_exact:
            self.require(total(found) - one, 0.0)
        return one

    def both(self, one: Linear, other: Linear, is_exact: bool = False) -> Linear:
        """Return 1 where both are, and what is at most 0 where one is not."""
        if one.is_no or other.is_no:
            return NO
        if one.is_yes:
            return other
        if other.is_yes or one == other:
            return one
        least = one + other - YES
        if not is_exact:
            return least
        key = "both", frozenset((one.key, other.key))
        if key in self._named:
            return self._named[key]
        both = self._named[key] = self.column()
        self.require(both - least, 0.0)
        self.require(one - both, 0.0)
        self.require(other - both, 0.0)
        return both

    def to_highs(self, scale: float) -> highspy.HighsLp:
        """Return the program with its costs times ``scale``."""
        rows = Rows(
            np.array(self._starts),
            np.array(self._columns),
            np.array(self._factors),
            np.array(self._least),
            np.array(self._most),
        )
        costs = np.array(self.costs) * scale
        above = np.array(self._above)
        return make_lp(costs, above, self.integers, rows, self._implied)


def value_of(what: Linear, values: Sequence[float]) -> float:
    """Return what an expression comes to."""
    return what.constant + sum(f * values[c] for c, f in what.terms.items())
