"""What prices the boxings of a search problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
from partita.compiler.search.problem import Problem, SearchNode, made_placement
from partita.compiler.search.wide_sums import WidePrices


def priced_on(problem: Problem, hardware: Hardware) -> Problem:
    """Return the problem with boxings as they are on another machine."""
    prices = boxing_prices_of(problem.nodes, problem.mesh, hardware, {})
    return replace(problem, box_seconds=prices)


def boxing_prices_of(
    nodes: Sequence[SearchNode],
    mesh: Mesh,
    hardware: Hardware,
    known: dict[object, Table],
) -> WidePrices:
    """Return what prices all boxings that the nodes may ask for."""
    return WidePrices(_tables(nodes, mesh, hardware, known, boxing_prices))


def figures_of(problem: Problem, hardware: Hardware, figure: Figure) -> BoxingTables:
    """Return a figure of all boxings of a problem, as they are on a machine."""
    return _tables(problem.nodes, problem.mesh, hardware, {}, figure)


def _tables(
    nodes: Sequence[SearchNode],
    mesh: Mesh,
    hardware: Hardware,
    known: dict[object, Table],
    figure: Figure,
) -> BoxingTables:
    tables = BoxingTables(mesh, hardware, known, figure)
    for type_, (made, wanted) in _boxed(nodes).items():
        tables.expect(type_, made, wanted)
    return tables


Placements = dict[Placement, None]  # a set in the order in which they were found


def _boxed(
    nodes: Sequence[SearchNode],
) -> dict[TensorType, tuple[Placements, Placements]]:
    """Return, by type, the placements in which tensors may be made and wanted."""
    found: dict[TensorType, tuple[Placements, Placements]] = {}
    seen: set[tuple[int, int, int, int]] = set()
    for node in nodes:
        for position, (source, result) in enumerate(node.operands):
            type_ = nodes[source].result_types[result]
            assert type_ is not None
            edge = id(nodes[source].choices), result, id(node.choices), position
            if edge in seen:
                continue
            seen.add(edge)
            made, wanted = found.setdefault(type_, ({}, {}))
            for choice in nodes[source].choices:
                made[made_placement(choice, result)] = None
            for choice in node.choices:
                wanted[choice.signature.operands[position]] = None
    return found
