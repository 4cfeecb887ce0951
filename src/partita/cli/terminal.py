"""Tables where a person looks on; where the output is piped, the same as plain text."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich import box
from rich.console import Console
from rich.table import Table as Drawn
from rich.text import Text

from partita.compiler.plan.table import Table
from partita.compiler.plan.units import printable

_SPLIT, _PARTIAL = r"\bS\(\d+[^)]*\)", r"\bP\(\w+\)"
_FIGURES = frozenset({"bytes", "time", "count", "calls", "nodes", ""})


def print_sections(sections: Iterable[str | Table]) -> None:
    """Print texts and tables, one under the other, to standard output."""
    if not sys.stdout.isatty():
        print("\n\n".join(map(str, sections)))
        return
    console = Console(highlight=False)
    for number, section in enumerate(sections):
        if number:
            console.print()
        if isinstance(section, str):
            console.print(Text(section))
            continue
        console.print(_drawn(section))
        if section.below:
            console.print(Text(section.below, "dim"))


def _drawn(table: Table) -> Drawn:
    """Return a table with placements in colours, which print in words as well."""
    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for head in table.head:
        if head in _FIGURES:
            drawn.add_column(head, justify="right", no_wrap=True)
        else:
            drawn.add_column(head, overflow="fold")
    for row in table.rows:
        drawn.add_row(*map(_cell, row))
    return drawn


def _cell(text: str) -> Text:
    cell = Text(printable(text))
    cell.highlight_regex(_SPLIT, "cyan")
    cell.highlight_regex(_PARTIAL, "magenta")
    return cell
