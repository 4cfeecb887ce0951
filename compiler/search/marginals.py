"""What an assignment with a given choice costs at least, by trees of links.

The relaxation leaves ``bound + sum theta + sum tables`` with nothing negative. On a
tree of links the least of that sum with x_i = a is found exactly for all i and a, by
messages to the root and back; other links can only add to it. Every spanning tree
gives another lower bound for every choice, and the largest counts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence, Set

import numpy as np

from partita.compiler.search.model import Floats
from partita.compiler.search.relaxation import End, Relaxation

_RANDOM_TREES = 3


def surpluses(relaxation: Relaxation) -> dict[int, Floats]:
    """Return by how much each choice exceeds the bound at least, per variable."""
    strengths = np.zeros(relaxation.num_links)
    ends_of: list[list[int]] = [[] for _ in strengths]  # by link, the variables
    least: dict[int, Floats] = {}  # by the side of a link, where it is not zero
    for variable, ends in relaxation.ends.items():
        for end in ends:
            ends_of[end.link].append(variable)
            if len(ends_of[end.link]) == 2:  # both sides have one table
                finite = end.table[np.isfinite(end.table)]
                strengths[end.link] = float(finite.mean())
            lowest = np.minimum.reduce(end.table, axis=1)
            if np.count_nonzero(lowest):
                least[end.side] = lowest
    strongest = [int(link) for link in np.argsort(-strengths, kind="stable")]
    rng = random.Random(0)
    orders = [strongest]
    orders += [rng.sample(strongest, len(strongest)) for _ in range(_RANDOM_TREES)]
    best: dict[int, Floats] = {}
    for order in orders:
        forest = _spanning_forest(ends_of, order)
        for variable, surplus in _on_tree(relaxation, forest, least).items():
            known = best.get(variable)
            best[variable] = surplus if known is None else np.maximum(known, surplus)
    return {variable: surplus for variable, surplus in best.items() if variable >= 0}


def _spanning_forest(
    ends_of: Sequence[Sequence[int]], order: Sequence[int]
) -> set[int]:
    """Return the links of a forest, those that come first in ``order`` preferred."""
    root = {variable: variable for ends in ends_of for variable in ends}

    def find(variable: int) -> int:
        while root[variable] != variable:
            root[variable] = root[root[variable]]
            variable = root[variable]
        return variable

    forest: set[int] = set()
    for link in order:
        first, second = (find(variable) for variable in ends_of[link])
        if first != second:
            root[first] = second
            forest.add(link)
    return forest


def _on_tree(
    relaxation: Relaxation, forest: Set[int], least_of: Mapping[int, Floats]
) -> dict[int, Floats]:
    """Return the surpluses that a forest of links gives.

    Args:
        relaxation: the bound.
        forest: its links.
        least_of: the least of each row of a link's table, by its side, unless zero.
    """
    branches: dict[int, list[End]] = {}
    surplus: dict[int, Floats] = {}
    for variable, ends in relaxation.ends.items():
        branches[variable] = [end for end in ends if end.link in forest]
        surplus[variable] = relaxation.theta[variable].copy()
    # up[v] leads from v toward its root, down[v] back
    up: dict[int, End | None] = {}
    down: dict[int, End] = {}
    sequence: list[int] = []
    for start in relaxation.ends:
        if start in up:
            continue
        up[start] = None
        stack = [start]
        while stack:
            variable = stack.pop()
            sequence.append(variable)
            for end in branches[variable]:
                if end.other not in up:
                    down[end.other] = end
                    stack.append(end.other)
                    up[end.other] = next(
                        back for back in branches[end.other] if back.link == end.link
                    )
    told: dict[int, Floats] = {}
    for variable in reversed(sequence):
        end = up[variable]
        if end is not None:
            least = end.least(surplus[variable])
            told[variable] = np.minimum.reduce(end.table + least[:, None])
            surplus[end.other] += told[variable][end.theirs]
    for variable in sequence:
        end = up[variable]
        if end is not None:
            back = down[variable]
            rest = surplus[end.other] - told[variable][back.own]
            least = back.least(rest)
            answer = np.minimum.reduce(back.table + least[:, None])
            surplus[variable] += answer[end.own]
    for variable, ends in relaxation.ends.items():
        for end in ends:
            if end.link not in forest and end.side in least_of:
                surplus[variable] += least_of[end.side][end.own]
    return surplus
