"""Who uses which tensor, as arrays of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from partita.compiler.search.model import Ints
from partita.compiler.search.numbering import starts_of


@dataclass(frozen=True, slots=True, eq=False)
class Edges:
    """The uses of tensors, one per operand, by node and operand.

    Attributes:
        start: per node its first use, and behind the last node how many there are.
        user: the node.
        position: as which of its operands.
        source: the node that makes it.
        result: which of its results it is.
    """

    start: Ints
    user: Ints
    position: Ints
    source: Ints
    result: Ints

    @classmethod
    def of(cls, operands: Sequence[Sequence[tuple[int, int]]]) -> Edges:
        """Return the uses by nodes of these operands.

        >>> edges = Edges.of([(), ((0, 0), (0, 1))])
        >>> edges.user, edges.position, edges.result
        (array([1, 1]), array([0, 1]), array([0, 1]))
        """
        lengths = np.fromiter(map(len, operands), np.int64, len(operands))
        start = starts_of(lengths)
        numbers = chain.from_iterable(chain.from_iterable(operands))
        pairs = np.fromiter(numbers, np.int64, 2 * int(start[-1])).reshape(-1, 2)
        user = np.repeat(np.arange(len(operands)), lengths)
        position = np.arange(len(user)) - start[user]
        return cls(start, user, position, pairs[:, 0], pairs[:, 1])
