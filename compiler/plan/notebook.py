"""What a notebook shows of a plan and of a difference: HTML without scripts.

It is what the terminal prints, in fewer rows. What a plan names is a stranger's text:
every cell is escaped, and what could steer a display is written as escapes.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING

from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.difference_table import ALIKE, difference_tables
from partita.compiler.plan.document import Document
from partita.compiler.plan.table import (
    PARAMETERS,
    Row,
    Table,
    collective_table,
    facts,
    grouped,
    largest,
    parameter_rows,
    title,
)
from partita.compiler.plan.units import (
    format_bytes,
    format_seconds,
    pattern,
    printable,
)

if TYPE_CHECKING:
    from partita.compiler.plan.difference import Difference

MOST_TENSORS = 8
"""Of a table; the largest are shown."""

MOST_CHANGES = 20
"""Of a table of what differs."""


def plan_html(document: Document) -> str:
    """Return a plan's figures, its largest tensors and its collectives."""
    predicted = document.predicted
    step, memory = predicted.seconds, predicted.bytes
    times = [
        (name, format_seconds(seconds), _share(seconds, step))
        for name, seconds in largest(predicted.seconds_by_part)
    ]
    sizes = [
        (name, format_bytes(size), _share(size, memory))
        for name, size in largest(predicted.bytes_by_part)
    ]
    tables = [
        Table(("step predicted", format_seconds(step), ""), times),
        Table(("memory of a rank", format_bytes(memory), ""), sizes),
        collective_table(document),
        Table((*PARAMETERS, "a rank holds"), _parameters(document)),
        Table(("result", "", "type", "placement", "a rank holds"), _results(document)),
    ]
    return html_block(
        title(document), [f"{name}: {text}" for name, text in facts(document)], tables
    )


def difference_html(difference: Difference) -> str:
    """Return what differs between two plans."""
    tables: list[Table] = []
    for table in difference_tables(difference):
        more = len(table.rows) - MOST_CHANGES
        rows = [*table.rows[:MOST_CHANGES]]
        if more > 0:
            rows.append((f"... and {more} more", *("",) * (len(table.head) - 1)))
        tables.append(Table(table.head, rows))
    return html_block(ALIKE if difference.is_empty else "what differs", [], tables)


def html_block(heading: str, lines: Iterable[str], tables: Iterable[Table]) -> str:
    """Return a heading, lines and tables as HTML; whatever they say stays text."""
    parts = [
        f"<div><b>{_text(heading)}</b>",
        *(f"<br>{_text(line)}" for line in lines),
        *(_table(table) for table in tables if table.rows),
        "</div>",
    ]
    return "\n".join(parts)


def _parameters(document: Document) -> list[Row]:
    """Return the rows of the largest parameters, by what a rank holds of one."""
    stages = document.stages
    found = [
        (_held(stages[of.homes[0]].mesh, of.type, of.placements.storage), row)
        for row, of in parameter_rows(document)
    ]
    return _of_largest(found)


def _results(document: Document) -> list[Row]:
    """Return the rows of the largest results of calls; views take no time."""
    results = [
        (key, type_, placement, document.stages[node.stage].mesh)
        for key, node in document.nodes.items()
        if node.role is None and node.seconds > 0
        for type_, placement in zip(node.types, node.signature.results, strict=True)
        if type_ is not None and placement is not None
    ]
    groups = grouped(results, lambda r: (pattern(r[0]), str(r[1]), str(r[2])))
    found = [
        (
            max(_held(mesh, type_, placement) for _, type_, placement, mesh in group),
            (name if len(group) > 1 else group[0][0], f"x{len(group)}", *rest),
        )
        for (name, *rest), group in groups.items()
    ]
    return _of_largest(found)


def _held(mesh: Mesh, type_: TensorType, placement: Placement) -> int:
    return largest_shard_numel(type_.shape, placement, mesh) * type_.dtype.itemsize


def _of_largest(found: Iterable[tuple[int, Row]]) -> list[Row]:
    chosen = sorted(found, key=lambda one: -one[0])[:MOST_TENSORS]
    return [(*row, format_bytes(size)) for size, row in chosen]


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else ""


def _table(table: Table) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in table.head)
    rows = [
        "<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    ]
    body = "\n".join(rows)
    return f"<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"


def _text(text: str) -> str:
    return html.escape(printable(text))
