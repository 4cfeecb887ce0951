"""Print what differs between two plans; equal lines of repeated blocks once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from partita.compiler.plan.table import Row, Table
from partita.compiler.plan.units import format_bytes, format_seconds, pattern

if TYPE_CHECKING:
    from partita.compiler.plan.difference import Change, Difference, Price

ALIKE = "the plans decide alike"
"""What is said of two that do."""


def print_difference(difference: Difference) -> str:
    """Return the difference as text: what moved, then the price."""
    parts = [ALIKE] if difference.is_empty else []
    return "\n\n".join([*parts, *map(str, difference_tables(difference))])


def difference_tables(difference: Difference) -> Iterator[Table]:
    """Yield the tables of a difference that have rows."""
    tables = (
        _changes(("the plans", "", "from", "to"), difference.plan),
        _renamed(difference.renamed),
        _changes(("parameter", "", "from", "to"), difference.parameters),
        _changes(("node", "", "from", "to"), difference.nodes),
        _changes(("group", "", "from", "to"), difference.groups, pattern),
        _changes(("collective", "", "from", "to"), difference.collectives),
        _prices("seconds", difference.seconds, format_seconds),
        _prices("bytes of a rank", difference.bytes, lambda n: format_bytes(round(n))),
    )
    yield from (table for table in tables if table.rows)


def _changes(
    head: tuple[str, ...],
    changes: Sequence[Change],
    alike: Callable[[str], str] = str,
) -> Table:
    """Return a row for each change; one for those that ``alike`` writes alike."""
    rows: dict[tuple[str, str, str, str], list[Change]] = {}
    for change in changes:
        before, after = change.before or "-", change.after or "-"
        key = pattern(change.name), change.what, alike(before), alike(after)
        rows.setdefault(key, []).append(change)
    cells: list[Row] = []
    for (name, what, before, after), group in rows.items():
        if len(group) == 1:
            (one,) = group
            name, before, after = one.name, one.before or "-", one.after or "-"
        cells.append((name, what, before, after, _times(group)))
    return Table((*head, ""), cells)


def _renamed(names: Mapping[str, str]) -> Table:
    counts = Counter((pattern(name), pattern(key)) for name, key in names.items())
    rows = [(*pair, f"x{count}") for pair, count in counts.items()]
    return Table(("called", "before", ""), rows)


def _times(group: Sequence[Change]) -> str:
    return f"x{len(group)}" if len(group) > 1 else ""


def _prices(head: str, prices: Sequence[Price], text: Callable[[float], str]) -> Table:
    rows = [
        (price.name, text(price.before), text(price.after), _change(price, text))
        for price in prices
    ]
    return Table((head, "from", "to", "change"), rows)


def _change(price: Price, text: Callable[[float], str]) -> str:
    if price.change == 0:
        return "-"
    sign = "+" if price.change > 0 else ""
    share = f" ({price.change / price.before:+.1%})" if price.before else ""
    return f"{sign}{text(price.change)}{share}"
