"""The parts of one call of a program, which the program itself does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import fx

from partita.compiler.ir.program import Value, info, operands, set_info, value_of
from partita.compiler.rules.expansion import Expansion
from partita.compiler.rules.inline import part_info


class Apart:
    """What ``inline`` puts in the place of a call, in a graph of its own.

    ``parts`` are its nodes in order, with the keys that they have there.
    """

    def __init__(self, node: fx.Node, expansion: Expansion) -> None:
        self._nodes: dict[fx.Node, fx.Node] = {}
        self._expansion = expansion
        fx.Graph().graph_copy(expansion.graph, self._nodes)
        self.parts = tuple([self._nodes[part] for part in expansion.parts])
        for part in self.parts:
            set_info(part, part_info(info(node), part))

    def used(self, given: Sequence[Value]) -> Iterator[tuple[fx.Node, list[Value]]]:
        """Yield every part and its operands, where the call has the operands ``given``.

        They are values of the program, or of other parts.
        """
        seen = self._seen(given)
        for part in self.parts:
            yield part, [seen.get(value, value) for value in operands(part)]

    def results(self, given: Sequence[Value]) -> Iterator[tuple[int, Value]]:
        """Yield which result of the call is which value, those that there are."""
        seen = self._seen(given)
        for index, result in enumerate(self._expansion.results):
            if result is not None:
                value = value_of(self._nodes[result])
                yield index, seen.get(value, value)

    def _seen(self, given: Sequence[Value]) -> Mapping[Value, Value]:
        entering = [Value(self._nodes[each], 0) for each in self._expansion.operands]
        return dict(zip(entering, given, strict=True))
