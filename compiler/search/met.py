"""The assignments that a search under a memory limit has met, each counted once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from partita.compiler.search.fold import Fold
from partita.compiler.search.holdings import Holdings, find_holdings
from partita.compiler.search.keeping import (
    Keeping,
    choose_keeping,
    keeping_one_by_one,
)
from partita.compiler.search.model import Bools
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.worthwhile import everything

_KEEPING_S = 10.0


@dataclass(frozen=True)
class Met:
    """What assignments hold, and what they make again under one limit or another.

    Attributes:
        posed: the problem.
        optimizer: what holds moments of every parameter.
        class_of: which of its nodes choose alike.
        num_live: microbatches of which a rank holds what the backward needs.
    """

    posed: Posed
    optimizer: str
    class_of: Sequence[int]
    num_live: int
    _held: dict[tuple[int, ...], Holdings] = field(
        default_factory=dict[tuple[int, ...], Holdings]
    )
    _kept: dict[tuple[tuple[int, ...], int], Keeping] = field(
        default_factory=dict[tuple[tuple[int, ...], int], Keeping]
    )
    _one_by_one: dict[tuple[tuple[int, ...], int], Keeping] = field(
        default_factory=dict[tuple[tuple[int, ...], int], Keeping]
    )

    def held_by(self, choices: tuple[int, ...]) -> Holdings:
        """Return what an assignment holds."""
        if choices not in self._held:
            self._held[choices] = find_holdings(
                self.posed, choices, self.optimizer, self.class_of, self.num_live
            )
        return self._held[choices]

    def keeping(self, choices: tuple[int, ...], limit: int, clock: Clock) -> Keeping:
        """Return what an assignment makes again so that it keeps to a limit."""
        if (choices, limit) not in self._kept:  # prices often lead to the same
            own = Clock.of(min(_KEEPING_S, max(clock.left_s, 1.0)))
            found = choose_keeping(self.held_by(choices), limit, own)
            self._kept[choices, limit] = found
        return self._kept[choices, limit]

    def one_by_one(
        self, choices: tuple[int, ...], known: Keeping, limit: int, clock: Clock
    ) -> Keeping:
        """Return what makes less again than a known way, block by block, or that."""
        found = self._one_by_one.get((choices, limit))
        if found is None:
            own = Clock.of(min(_KEEPING_S, clock.left_s))
            found = keeping_one_by_one(self.held_by(choices), known, limit, own)
            if own.left_s > 0:  # else there may be more to find
                self._one_by_one[choices, limit] = found
        return min(known, found, key=lambda way: way.seconds)

    def choices(self, fold: Fold, known: Sequence[int]) -> tuple[Bools, ...]:
        """Return, per class of a fold, which choices were met, and those known."""
        found = tuple(np.zeros_like(own) for own in everything(fold))
        for met in dict.fromkeys((tuple(known), *(own for own, _ in self._kept))):
            for number, choice in zip(fold.class_of, met, strict=True):
                found[number][choice] = True
        return found

    def leanest(self, limit: int) -> list[tuple[int, ...]]:
        """Return those met under a limit, those first that then hold the least."""
        found = [choices for choices, own in self._kept if own == limit]
        return sorted(found, key=lambda own: self._kept[own, limit].peak_bytes)
