"""A problem without choices that belong to nothing that is searched for.

Those need more than a memory limit by themselves (own_bytes.py), or what they belong to
is no faster than what is known. Equal blocks choose alike, so what is left is the same
for all nodes of a class. Under a memory limit it is searched again and again; the fewer
choices there are, the faster that goes, and the closer are bounds with memory at a
price: what is charged for holding a tensor cannot be more than the choices that are
left would be charged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from partita.compiler.search.fold import Fold
from partita.compiler.search.model import Bools, Ints
from partita.compiler.search.parts import Clock
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice, Prices
from partita.compiler.search.worthwhile import worthwhile

_LATER = 1.02  # times what is known: under a little less of a limit it serves, too
_SOON = 0.98  # of what is known; what is faster than that narrows it anew


@dataclass(frozen=True, eq=False)
class Narrowed:
    """What is left of a problem, searched for what takes less than ``known_s``.

    Attributes:
        posed: the problem of what is left.
        fold: its repeated blocks.
        kept: the choices of the whole problem that are left, per class.
        known_s: nothing that takes less than these seconds is left out.
    """

    posed: Posed
    fold: Fold
    kept: tuple[Ints, ...]
    known_s: float

    @classmethod
    def to(
        cls,
        posed: Posed,
        fold: Fold,
        left_in: Sequence[Bools],
        prices: Prices | None = None,
    ) -> Narrowed:
        """Return a problem with some choices of each class alone.

        ``prices`` are those of the boxings that are left: all, if ``None``.
        """
        left = _left(fold, left_in, prices or posed.problem.box_seconds)
        kept = tuple(np.flatnonzero(own) for own in left_in)
        return cls(replace(posed, problem=left.problem), left, kept, inf)

    def below(
        self, known_s: float, known: Sequence[Sequence[int]], clock: Clock
    ) -> Narrowed:
        """Return what is left of this for what takes less than ``known_s``.

        Args:
            known_s: what is searched takes less.
            known: assignments of the whole problem, in which equal blocks are alike,
                that are left in as far as they are in this.
            clock: when to stop.
        """
        known_s *= _LATER
        worth, _ = worthwhile(self.fold, known_s, 0.0, clock)
        for own, kept, members in zip(worth, self.kept, self.fold.members, strict=True):
            own |= np.isin(kept, [choices[members[0]] for choices in known])
        left = self.to(self.posed, self.fold, worth)
        kept = tuple(own[of] for own, of in zip(self.kept, left.kept, strict=True))
        return replace(left, kept=kept, known_s=known_s)

    def serves(self, known_s: float) -> bool:
        """Whether this has all that takes less than these seconds, and little more."""
        return known_s <= self.known_s and known_s > _SOON * self.known_s / _LATER

    def widened(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Return an assignment of what is left as one of the whole problem."""
        pairs = zip(self.fold.class_of, choices, strict=True)
        return tuple([int(self.kept[number][choice]) for number, choice in pairs])


def _left(fold: Fold, worth: Sequence[Bools], prices: Prices) -> Fold:
    """Return the problem with these choices of each class alone."""
    known: dict[tuple[int, int], tuple[Choice, ...]] = {}
    nodes = list(fold.problem.nodes)
    for index, (node, number) in enumerate(zip(nodes, fold.class_of, strict=True)):
        key = id(node.choices), number
        if key not in known:
            own = np.flatnonzero(worth[number])
            known[key] = tuple([node.choices[choice] for choice in own])
        nodes[index] = replace(node, choices=known[key])
    left = replace(fold.problem, nodes=tuple(nodes), box_seconds=prices)
    return Fold(left, fold.class_of)
