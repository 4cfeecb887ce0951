"""What a search decided, without names: carried over to every program that is alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.decide import Found
from partita.compiler.search.pose import Posed


@dataclass(frozen=True)
class Decided:
    """What a search decided, by position: it holds for every program that is alike.

    Attributes:
        steps: the choices of every step's problem.
        last: those of the whole mesh, as they were taken in the end.
        again: what is made again: of which node, by its position, and the rest of the
            key where it is no node of the program but a part or a boxing of one.
        result: how it was found.
    """

    steps: tuple[tuple[int, ...], ...]
    last: tuple[int, ...]
    again: frozenset[tuple[int, str]]
    result: SearchResult

    @classmethod
    def of(
        cls, steps: Iterable[tuple[int, ...]], posed: Posed, found: Found
    ) -> Decided:
        """Return what was decided for the program that ``posed`` is a problem of."""
        at = {node.key: index for index, node in enumerate(posed.problem.nodes)}
        again = frozenset(_placed(key, at) for key in found.recompute)
        return cls(tuple(steps), tuple(found.choices), again, found.result)

    def again_in(self, posed: Posed) -> frozenset[str]:
        """Return the keys of what is made again in the program of ``posed``."""
        keys = [node.key for node in posed.problem.nodes]
        return frozenset(f"{keys[position]}{rest}" for position, rest in self.again)


def _placed(key: str, at: Mapping[str, int]) -> tuple[int, str]:
    """Return the position of the node that a key begins with, and the rest of it."""
    end = len(key)
    while key[:end] not in at:
        end = max(key.rfind(mark, 0, end) for mark in "#/")
        assert end > 0, key
    return at[key[:end]], key[end:]
