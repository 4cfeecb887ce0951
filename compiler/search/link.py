"""A link between two variables of the relaxation, as one of them sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from partita.compiler.search.model import Floats, Ints


@dataclass(slots=True)
class End:
    """One end of a link: ``table`` is [own class, other's class], shared by both.

    Attributes:
        link: the same number for both ends.
        side: a number of its own; that of the link's other end is ``side ^ 1``.
        first: where the link's table starts among those of all links.
        other: the variable at the other end.
        table: what a pair of classes costs.
        own: the class of each choice; ``theirs``: of the other's.
        order: choices sorted by class, and where classes start.
    """

    link: int
    side: int
    first: int
    other: int
    table: Floats
    own: Ints
    theirs: Ints
    order: Ints = field(init=False)
    starts: Ints = field(init=False)

    def __post_init__(self) -> None:
        self.order = np.argsort(self.own, kind="stable")
        classes = np.arange(len(self.table))
        self.starts = np.searchsorted(self.own[self.order], classes)

    def least(self, values: Floats) -> Floats:
        """Return the smallest value in each own class."""
        return np.minimum.reduceat(values[self.order], self.starts)
