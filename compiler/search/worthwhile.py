"""Which choices can belong to anything that keeps to a limit and beats what is known.

With memory at a price, the priced cost less price times limit is a lower bound on the
seconds of whatever keeps to the limit (``memory_price.py``), and so is that of what
takes a given choice (``marginals.py``). Choices whose bound is no less than the known
seconds can go. Nothing else is reduced: what is dominated by price may be needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from partita.compiler.search.build import build_model
from partita.compiler.search.fold import Fold
from partita.compiler.search.marginals import surpluses
from partita.compiler.search.model import Bools
from partita.compiler.search.parts import Clock
from partita.compiler.search.reduction import possible_choices
from partita.compiler.search.relaxation import Relaxation

_SWEEPS = 10
_MOST_LOOKS = 10  # so many sweeps apart
_STALLED = 1e-3  # of the gap, gained from one to the next


def worthwhile(
    fold: Fold, known_s: float, paid_s: float, clock: Clock
) -> tuple[tuple[Bools, ...], float]:
    """Return, per class, which choices are worth looking at, and a lower bound.

    Args:
        fold: of the problem with memory at a price.
        known_s: the seconds of what keeps to the limit.
        paid_s: the price of as many bytes as the limit.
        clock: when to stop.
    """
    model = build_model(fold)
    relaxation = Relaxation(model)
    relaxation.restrict({v: possible_choices(model, v) for v in model.costs})
    before = relaxation.bound
    for _ in range(_MOST_LOOKS):
        relaxation.sweep(_SWEEPS)
        gap = known_s - (relaxation.bound - paid_s)
        if relaxation.bound - before < _STALLED * gap or clock.left_s <= 0:
            break
        before = relaxation.bound
    bound = relaxation.bound - paid_s
    found = surpluses(relaxation)
    worth = everything(fold)
    for number, own in enumerate(worth):
        own[:] = False
        own[model.domains[number]] = found[number] <= known_s - bound
    return worth, bound


def everything(fold: Fold) -> tuple[Bools, ...]:
    """Return all choices of every class."""
    nodes = fold.problem.nodes
    return tuple(
        np.ones(len(nodes[members[0]].choices), dtype=np.bool_)
        for members in fold.members
    )


def with_known(
    worth: Sequence[Bools], fold: Fold, choices: Sequence[int]
) -> tuple[Bools, ...]:
    """Return the choices that are worthwhile, and those that are known."""
    for own, members in zip(worth, fold.members, strict=True):
        own[choices[members[0]]] = True
    return tuple(worth)


def num_pairs(fold: Fold, allowed: Sequence[Bools]) -> int:
    """Return how many pairs of choices neighbours have, at most: all, not one each."""
    sizes = [int(allowed[number].sum()) for number in fold.class_of]
    return sum(
        sizes[index] * sizes[source]
        for index, node in enumerate(fold.problem.nodes)
        for source, _ in node.operands
    )
