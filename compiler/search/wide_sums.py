"""Gradients made in 16 bits, and added up over ranks in the bits of their parameter.

In mixed precision a gradient is made in 16 bits and cast to its parameter's dtype.
Added up before the cast it moves half of the bytes, and every addition rounds; DDP adds
up behind it. Here the types of such gradients are marked, and a sum of what is marked
has no boxing: partial sums pass the cast, and are added up behind it. Gathers may come
before: a copy has no more digits in 32 bits than it had in 16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from math import inf

import numpy as np

from partita.compiler.ir.sbp import Partial, Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.model import Floats
from partita.compiler.search.problem import Choice, PriceTables, SearchNode


class Narrow(TensorType):
    """The type of a gradient that is still to be cast to a wider dtype."""

    __slots__ = ()


@dataclass(frozen=True)
class WidePrices:
    """Prices of boxings; infinite for a sum of what is ``Narrow``."""

    prices: PriceTables

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        """Return the seconds of the cheapest boxing from ``made`` to ``wanted``."""
        if isinstance(type, Narrow) and _sums(made, wanted):
            return inf
        return self.prices(type, made, wanted)

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Floats:
        """Return the seconds from each placement to each."""
        table = self.prices.table(type, made, wanted)
        if not isinstance(type, Narrow):
            return table
        sums = [[_sums(one, other) for other in wanted] for one in made]
        return np.where(np.array(sums, dtype=np.bool_), inf, table)


def _sums(made: Placement, wanted: Placement) -> bool:
    """Whether a boxing adds up, along some axis."""
    pairs = zip(made.shardings, wanted.shardings, strict=True)
    return any(isinstance(old, Partial) and old != new for old, new in pairs)


def with_narrow(
    nodes: Sequence[SearchNode], gradients: Collection[int]
) -> tuple[SearchNode, ...]:
    """Return the nodes with the types of gradients that are cast later marked.

    Those are what leads to gradients alone, by calls that partial sums pass through.

    Args:
        nodes: those of a problem, in order.
        gradients: which of them are outputs that gradients leave by.
    """
    distinct = {id(node.result_types): node.result_types for node in nodes}
    types = [type_ for own in distinct.values() for type_ in own if type_ is not None]
    if len({type_.dtype.itemsize for type_ in types if _is_number(type_)}) < 2:
        return tuple(nodes)  # nothing is cast to what is wider
    waiting = Counter(chain.from_iterable([node.operands for node in nodes]))
    least: dict[tuple[int, int], int] = {}  # bytes of an element of the narrowest
    making: set[int] = set()  # who makes those tensors
    passing: dict[int, bool] = {}
    found = list(nodes)

    def lead(node: SearchNode, num_bytes: int) -> None:
        """Note that what a node takes leads to such a gradient by it."""
        for value in node.operands:
            waiting[value] -= 1
            least[value] = min(num_bytes, least.get(value, num_bytes))
            making.add(value[0])

    for index in reversed(range(len(nodes))):
        node = nodes[index]
        if index in gradients:
            ((source, result),) = node.operands
            type_ = nodes[source].result_types[result]
            assert type_ is not None
            lead(node, type_.dtype.itemsize)
            continue
        if index not in making:
            continue
        values = [(index, result) for result in range(len(node.result_types))]
        leading = [None if waiting[value] else least.get(value) for value in values]
        if not any(leading):
            continue
        marked = tuple(map(_marked, node.result_types, leading))
        if marked != node.result_types:
            found[index] = SearchNode(
                node.key, node.choices, node.operands, marked, node.times
            )
        if len(leading) == 1 and leading[0] is not None and node.operands:
            passes = passing.get(id(node.choices))
            if passes is None:
                passes = passing[id(node.choices)] = _passes_sums(node.choices)
            if passes:
                lead(node, leading[0])
    return tuple(found)


def _is_number(type: TensorType) -> bool:
    return type.dtype.is_floating_point or type.dtype.is_complex


def _marked(type: TensorType | None, num_bytes: int | None) -> TensorType | None:
    if type is None or num_bytes is None or not type.dtype.is_floating_point:
        return type
    is_narrow = type.dtype.itemsize < num_bytes
    return Narrow(type.shape, type.dtype) if is_narrow else type


def _passes_sums(choices: Sequence[Choice]) -> bool:
    """Whether partial sums of all operands make a partial sum."""
    return any(
        all(p is not None and p.has_partial for p in placements)
        for choice in choices
        if (placements := (*choice.signature.operands, *choice.signature.results))
    )
