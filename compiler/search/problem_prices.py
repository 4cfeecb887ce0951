"""What prices the boxings of a search problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partita.compiler.cost.boxing_prices import (
    BoxingTables,
    Figure,
    Table,
    boxing_prices,
)
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.fold import Fold
from partita.compiler.search.problem import SearchNode, made_placement
from partita.compiler.search.wide_sums import WidePrices


def prices_on(fold: Fold, hardware: Hardware) -> WidePrices:
    """Return what prices all boxings of a problem as they are on another machine."""
    return WidePrices(figures_of(fold, hardware, boxing_prices))


def boxing_prices_of(
    nodes: Sequence[SearchNode],
    mesh: Mesh,
    hardware: Hardware,
    known: dict[object, Table],
) -> WidePrices:
    """Return what prices all boxings that the nodes may ask for."""
    edges = (
        (nodes[source], result, node, position)
        for node in nodes
        for position, (source, result) in enumerate(node.operands)
    )
    return WidePrices(_tables(edges, mesh, hardware, known, boxing_prices))


def figures_of(fold: Fold, hardware: Hardware, figure: Figure) -> BoxingTables:
    """Return a figure of all boxings of a problem, as they are on a machine."""
    firsts = [fold.problem.nodes[first] for first, *_ in fold.members]
    edges = (
        (firsts[tensor.source], tensor.result, firsts[user], position)
        for tensor in fold.shared
        for user, positions in tensor.users
        for position in positions
    )
    return _tables(edges, fold.problem.mesh, hardware, {}, figure)


_Edge = tuple[SearchNode, int, SearchNode, int]
"""What makes a tensor as which result, and what takes it as which operand."""


def _tables(
    edges: Iterable[_Edge],
    mesh: Mesh,
    hardware: Hardware,
    known: dict[object, Table],
    figure: Figure,
) -> BoxingTables:
    tables = BoxingTables(mesh, hardware, known, figure)
    for type_, (made, wanted) in _boxed(edges).items():
        tables.expect(type_, made, wanted)
    return tables


Placements = dict[Placement, None]  # a set in the order in which they were found


def _boxed(
    edges: Iterable[_Edge],
) -> dict[TensorType, tuple[Placements, Placements]]:
    """Return, by type, the placements in which tensors may be made and wanted."""
    found: dict[TensorType, tuple[Placements, Placements]] = {}
    seen: set[tuple[int, int, int, int]] = set()
    for source, result, node, position in edges:
        edge = id(source.choices), result, id(node.choices), position
        if edge in seen:
            continue
        seen.add(edge)
        type_ = source.result_types[result]
        assert type_ is not None
        made, wanted = found.setdefault(type_, ({}, {}))
        for choice in source.choices:
            made[made_placement(choice, result)] = None
        for choice in node.choices:
            wanted[choice.signature.operands[position]] = None
    return found
