"""What the classes of a fold may make and want: placements as numbers.

It follows from their choices alone, whatever these and boxings cost.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.compiler.ir.sbp import Placement
from partita.compiler.search.model import Ints, Port
from partita.compiler.search.problem import SearchNode, made_placement, tied_placement


class Offers:
    """The placements that nodes may make and want, each found once."""

    def __init__(self, nodes: Sequence[SearchNode]) -> None:
        self.placements: list[Placement] = []
        self._choices = [node.choices for node in nodes]
        self._numbers: dict[Placement, int] = {}
        self._numbers_by_id: dict[int, int] = {}  # hashed once per object
        self._made: dict[tuple[int, int], tuple[list[int], Ints]] = {}
        self._wanted: dict[tuple[int, tuple[int, ...]], tuple[list[int], Port]] = {}

    def made(self, node: int, result: int) -> tuple[list[int], Ints]:
        """Return the placements a result may be made in, and each choice's of them."""
        key = id(self._choices[node]), result
        if key not in self._made:
            made = [made_placement(choice, result) for choice in self._choices[node]]
            self._made[key] = self._placed(made)
        return self._made[key]

    def tied(self, node: int) -> tuple[list[int], Ints]:
        """Return the placements in which what is tied leaves, and each choice's."""
        return self._placed([tied_placement(choice) for choice in self._choices[node]])

    def _placed(self, placements: Sequence[Placement]) -> tuple[list[int], Ints]:
        codes = [self._number(placement) for placement in placements]
        order = {code: index for index, code in enumerate(dict.fromkeys(codes))}
        classes = np.array([order[code] for code in codes], dtype=np.int64)
        return list(order), classes

    def wanted(self, node: int, at: tuple[int, ...]) -> tuple[list[int], Port]:
        """Return the placements that operands are wanted in, and a port over them.

        The port is the caller's to change, its arrays are not.
        """
        key = id(self._choices[node]), at
        if key not in self._wanted:
            operands = [choice.signature.operands for choice in self._choices[node]]
            self._wanted[key] = _port(
                [frozenset([self._number(own[p]) for p in at]) for own in operands]
            )
        columns, port = self._wanted[key]
        return columns, Port(port.sets, port.classes)

    def _number(self, placement: Placement) -> int:
        found = self._numbers_by_id.get(id(placement))
        if found is None:
            found = self._numbers.setdefault(placement, len(self.placements))
            if found == len(self.placements):
                self.placements.append(placement)
            self._numbers_by_id[id(placement)] = found
        return found


def _port(wants: list[frozenset[int]]) -> tuple[list[int], Port]:
    """Return the placements wanted at all, and the port over them."""
    order = {want: index for index, want in enumerate(dict.fromkeys(wants))}
    columns = sorted(frozenset[int]().union(*order))
    sets = np.array([[w in want for w in columns] for want in order], dtype=np.bool_)
    classes = np.array([order[want] for want in wants], dtype=np.int64)
    return columns, Port(sets, classes)
