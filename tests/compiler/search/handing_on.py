"""Assignments as a model takes them: what leaves by views is boxed behind them."""

from __future__ import annotations

from collections.abc import Sequence

from partita.compiler.search.fold import Fold


def boxed_behind(fold: Fold, choices: Sequence[int]) -> list[int]:
    """Return choices per class in which views that leave take what is made."""
    found, handed = list(choices), fold.handed
    left = list(handed)
    while left:
        view = left.pop(0)
        source, result = handed[view].source
        if source in left:  # a view itself, and its turn is first
            left.append(view)
            continue
        nodes = [fold.problem.nodes[fold.members[at][0]] for at in (source, view)]
        made = nodes[0].choices[found[source]].signature.results[result]
        takes = [choice.signature.operands[0] for choice in nodes[1].choices]
        assert made is not None
        found[view] = takes.index(made)
    return found
