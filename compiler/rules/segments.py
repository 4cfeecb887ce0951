"""Which segmented splits are worth trying, found by following dims through a graph.

A segmentation is born where an op cuts or joins a dim (``split`` of a fused q|k|v,
``cat``) or where a view makes a factor the inner part of a dim; it is worth trying
wherever the same dim lives on: up into the weights and down into the gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import fx

from partita.compiler.ir.program import Value, operands
from partita.compiler.ir.sbp import Split
from partita.compiler.ir.signature import Signature
from partita.compiler.rules.factors import Factors, Part
from partita.compiler.rules.signatures import Segments, split_of

_MAX_PER_DIM = 4
_MAX_SEGMENTS = 64


@dataclass(frozen=True)
class Segmentations:
    """Candidates per factor of each node and per dim of each value."""

    of_factor: Mapping[fx.Node, Mapping[str, frozenset[Segments]]]
    of_dim: Mapping[tuple[Value, int], frozenset[Segments]]


def _values(node: fx.Node, factors: Factors) -> list[tuple[Value, tuple[Part, ...]]]:
    used = list(zip(operands(node), factors.operands, strict=True))
    made = [
        (Value(node, index), parts)
        for index, parts in enumerate(factors.results)
        if parts is not None
    ]
    return used + made


def _seen_through(part: Part, found: set[Segments]) -> set[Segments]:
    """Return a dim's segmentations as segmentations of the factor in it."""
    if not found or part.outer > 1 or part.pieces:
        return set()
    return {
        tuple(size // part.inner for size in segments)
        for segments in found
        if all(size % part.inner == 0 for size in segments)
    }


def segments_in(
    signature: Signature, factors: Factors
) -> dict[str, frozenset[Segments]]:
    """Return the segmentations of each factor that a signature's splits are of."""
    found: dict[str, set[Segments]] = {}
    placed = [
        *zip(factors.operands, signature.operands, strict=True),
        *zip(factors.results, signature.results, strict=True),
    ]
    for parts, placement in placed:
        for sharding in placement.shardings if placement is not None else ():
            if isinstance(sharding, Split) and sharding.segments:
                for part in parts or ():
                    if part.dim == sharding.dim and part.factor in factors.sizes:
                        seen = _seen_through(part, {sharding.segments})
                        found.setdefault(part.factor, set()).update(seen)
    return {factor: frozenset(segments) for factor, segments in found.items()}


def find_segmentations(
    factors: Mapping[fx.Node, Factors],
    stand_in: Mapping[fx.Node, fx.Node] | None = None,
) -> Segmentations:
    """Follow segmentations through a program until nothing new is found.

    At most four per dim and 64 segments each: more has never paid, and the search
    grows with them.

    Args:
        factors: of its calls, in order.
        stand_in: of nodes that equal calls share, the one that is looked at for all.
    """
    first = stand_in or {}
    of_dim: dict[tuple[Value, int], set[Segments]] = {}
    of_factor: dict[fx.Node, dict[str, set[Segments]]] = {}
    nodes = [node for node in factors if first.get(node, node) is node]
    values_of = {
        node: [
            (Value(first.get(value.node, value.node), value.index), parts)
            for value, parts in _values(node, factors[node])
        ]
        for node in nodes
    }
    changed = True
    while changed:
        changed = False
        for node in (*nodes, *reversed(nodes)):
            values = values_of[node]
            found = of_factor.setdefault(node, {})
            for value, parts in values:
                for part in parts:
                    here = of_dim.setdefault((value, part.dim), set())
                    known = found.setdefault(part.factor, set())
                    if here and part.factor in factors[node].sizes:
                        known |= _seen_through(part, here)
            for value, parts in values:
                for part in parts:
                    if part.factor not in factors[node].sizes:
                        continue
                    here = of_dim[value, part.dim]
                    for tried in ((), *sorted(found[part.factor])):
                        new = split_of(part, tried).segments
                        small = 1 < len(new) <= _MAX_SEGMENTS and min(new) > 1
                        if small and new not in here and len(here) < _MAX_PER_DIM:
                            here.add(new)
                            changed = True
    return Segmentations(
        {
            node: {name: frozenset(segs) for name, segs in by_name.items() if segs}
            for node, by_name in of_factor.items()
        },
        {key: frozenset(segs) for key, segs in of_dim.items() if segs},
    )
