"""The cheapest assignments with memory at a price, each searched once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from partita.compiler.search.fold import Fold
from partita.compiler.search.memory_price import MemoryPrice
from partita.compiler.search.parts import ROUGH
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Problem
from partita.compiler.search.solver import Solution, solve

Posing = Callable[[MemoryPrice, float], Problem]
"""A problem with every byte at a price: ``MemoryPrice.problem`` or the like."""


@dataclass
class AtPrice:
    """What was searched with memory at one price or another.

    Attributes:
        class_of: which nodes are to choose alike, as of ``Fold``.
        optimizer: what holds moments of every parameter.
    """

    class_of: tuple[int, ...]
    optimizer: str
    _solved: dict[object, tuple[Posed, Solution]] = field(
        default_factory=dict[object, tuple[Posed, Solution]]
    )

    def fold(
        self,
        posed: Posed,
        moments: tuple[int, ...],
        seconds_per_byte: float,
        posing: Posing = MemoryPrice.problem,
    ) -> Fold:
        """Return a problem, or what is left of it, with memory at a price then."""
        priced = MemoryPrice(posed, self.optimizer, moments)
        return Fold(posing(priced, seconds_per_byte), self.class_of)

    def solved(
        self,
        posed: Posed,
        moments: tuple[int, ...],
        seconds_per_byte: float,
        time_limit_s: float,
        posing: Posing = MemoryPrice.problem,
    ) -> Solution:
        """Return a cheap assignment of what ``fold`` returns, and a bound for all.

        What is cheapest at a price is only one that others are compared with: what it
        holds counts. The last of the gap would take most of the time.
        """
        known = id(posed), seconds_per_byte, posing, moments
        if known not in self._solved:
            fold = self.fold(posed, moments, seconds_per_byte, posing)
            found = solve(fold.problem, time_limit_s, fold, ROUGH)
            self._solved[known] = posed, found  # as long as this is kept its id is its
        return self._solved[known][1]
