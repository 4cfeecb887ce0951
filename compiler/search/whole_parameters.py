"""The search problem with trained parameters whole on all ranks, and updated there.

Then gradients are completed in one way, and their messages share one buffer. A sum of
prices does not say what that saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partita.compiler.ir.sbp import Broadcast, Placement
from partita.compiler.search.fold import Fold
from partita.compiler.search.problem import Choice, Problem, SearchNode, made_placement


@dataclass(frozen=True)
class WholeParameters:
    """A problem with fewer choices, and that which it is of.

    Attributes:
        fold: with fewer.
        problem: with all.
    """

    fold: Fold
    problem: Problem

    @classmethod
    def of(cls, fold: Fold) -> WholeParameters | None:
        """Return it for a problem; ``None`` where a parameter is not offered whole."""
        known: dict[int, tuple[Choice, ...]] = {}
        nodes: list[SearchNode] = []
        for node in fold.problem.nodes:
            number = id(node.choices)
            if number not in known:
                known[number] = tuple(filter(_is_whole, node.choices))
            if not known[number]:
                return None
            is_same = len(known[number]) == len(node.choices)
            own = node if is_same else replace(node, choices=known[number])
            nodes.append(own)
        problem = replace(fold.problem, nodes=tuple(nodes))
        return cls(replace(fold, problem=problem), fold.problem)

    def has(self, choices: Sequence[int]) -> bool:
        """Whether choices of ``problem`` are among these."""
        each = zip(self.problem.nodes, choices, strict=True)
        return all(_is_whole(node.choices[choice]) for node, choice in each)

    def among_all(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers that choices of ``fold`` have in ``problem``."""
        at: dict[int, dict[int, int]] = {}
        found: list[int] = []
        each = zip(self.problem.nodes, self.fold.problem.nodes, choices, strict=True)
        for node, other, choice in each:
            own = at.get(id(node.choices))
            if own is None:
                own = {id(one): number for number, one in enumerate(node.choices)}
                at[id(node.choices)] = own
            found.append(own[id(other.choices[choice])])
        return tuple(found)


def _is_whole(choice: Choice) -> bool:
    """Whether a choice is not of a trained parameter, or has it whole everywhere."""
    held = choice.held
    if held is None:
        return True
    return all(
        map(_is_copied, (made_placement(choice, 0), held.gradient, held.optimizer))
    )


def _is_copied(placement: Placement) -> bool:
    return all(isinstance(sharding, Broadcast) for sharding in placement.shardings)
