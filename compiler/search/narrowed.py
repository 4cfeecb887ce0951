"""A problem without the choices that belong to nothing faster than what is known.

Equal blocks choose alike, so what is left is the same for all nodes of a class. Under a
memory limit it is searched again and again; the fewer choices there are, the faster
that goes, and the closer are bounds with memory at a price: what is charged for holding
a tensor cannot be more than the choices that are left would be charged.
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
from partita.compiler.search.problem import Choice
from partita.compiler.search.worthwhile import everything, worthwhile

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
    def whole(cls, posed: Posed, fold: Fold) -> Narrowed:
        """Return all of a problem."""
        kept = tuple(np.flatnonzero(own) for own in everything(fold))
        return cls(posed, fold, kept, inf)

    @classmethod
    def of(
        cls,
        posed: Posed,
        fold: Fold,
        known_s: float,
        known: Sequence[Sequence[int]],
        clock: Clock,
    ) -> Narrowed:
        """Return what is left of a problem.

        Args:
            posed: the problem.
            fold: its repeated blocks.
            known_s: what is searched takes less.
            known: assignments, in which equal blocks are alike, that are left in.
            clock: when to stop.
        """
        known_s *= _LATER
        worth, _ = worthwhile(fold, known_s, 0.0, clock)
        for own, members in zip(worth, fold.members, strict=True):
            own[[choices[members[0]] for choices in known]] = True
        kept = tuple(np.flatnonzero(own) for own in worth)
        left = _left(fold, worth)
        narrow = replace(posed, problem=left.problem)
        return cls(narrow, left, kept, known_s)

    def serves(self, known_s: float) -> bool:
        """Whether this has all that takes less than these seconds, and little more."""
        return known_s <= self.known_s and known_s > _SOON * self.known_s / _LATER

    def widened(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Return an assignment of what is left as one of the whole problem."""
        pairs = zip(self.fold.class_of, choices, strict=True)
        return tuple([int(self.kept[number][choice]) for number, choice in pairs])


def _left(fold: Fold, worth: Sequence[Bools]) -> Fold:
    """Return the problem with these choices of each class alone."""
    known: dict[tuple[int, int], tuple[Choice, ...]] = {}
    nodes = list(fold.problem.nodes)
    for index, (node, number) in enumerate(zip(nodes, fold.class_of, strict=True)):
        key = id(node.choices), number
        if key not in known:
            own = np.flatnonzero(worth[number])
            known[key] = tuple([node.choices[choice] for choice in own])
        nodes[index] = replace(node, choices=known[key])
    return Fold(replace(fold.problem, nodes=tuple(nodes)), fold.class_of)
