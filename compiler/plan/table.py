"""Print a plan as tables: totals, parameters, collectives, boxings.

Equal lines of repeated blocks are printed once: ``h.*.mlp.weight  x12``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from partita.compiler.ir.again import again_key
from partita.compiler.plan.asked import find_asked
from partita.compiler.plan.buckets import bucket_seconds
from partita.compiler.plan.document import Boxing, Document, Parameter
from partita.compiler.plan.search_result import Tried
from partita.compiler.plan.stage_records import Transfer
from partita.compiler.plan.stages import mesh_text
from partita.compiler.plan.units import (
    format_bytes,
    format_seconds,
    pattern,
    printable,
)

T = TypeVar("T")
N = TypeVar("N", int, float)
Row = tuple[str, ...]

_MOST_ROWS = 40


PARAMETERS = ("parameter", "", "type", "storage", "use", "gradient", "optimizer")
"""The head of the table of parameters."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under their head, and a line below; nothing where there are no rows."""

    head: Row
    rows: Sequence[Row]
    below: str = ""

    def __str__(self) -> str:
        below = f"\n{self.below}" if self.below else ""
        return format_table(self.head, self.rows) + below if self.rows else ""


def print_tables(document: Document, most_rows: int = _MOST_ROWS) -> str:
    """Return the plan as text; of the boxings the ``most_rows`` slowest groups."""
    return "\n\n".join(map(str, sections(document, most_rows)))


def sections(document: Document, most_rows: int = _MOST_ROWS) -> list[str | Table]:
    """Return what there is to print of a plan, one under the other."""
    collectives = collective_table(document)
    parts: list[str | Table] = [
        _head(document),
        Table(PARAMETERS, [row for row, _ in parameter_rows(document)]),
        _buffers(document),
        _stages(document),
        _transfers(document),
        collectives if collectives.rows else "no collectives",
        _boxings(document, most_rows),
        _reported(document),
    ]
    return [part for part in parts if str(part)]


def format_table(head: Row, rows: Sequence[Row]) -> str:
    """Return rows under their head, in columns; figures (last columns) as given."""
    lines = [head, *(tuple(printable(cell) for cell in row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    lines.insert(1, tuple("-" * width for width in widths))
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def largest(parts: Mapping[str, N]) -> list[tuple[str, N]]:
    """Return parts by name, the largest first."""
    return sorted(parts.items(), key=lambda part: (-part[1], part[0]))


def _parts(items: Iterable[tuple[str, str]]) -> str:
    text = ", ".join(f"{name} {value}" for name, value in items)
    return f" ({text})" if text else ""


def _head(document: Document) -> str:
    predicted = document.predicted
    times = [(k, format_seconds(v)) for k, v in largest(predicted.seconds_by_part)]
    sizes = [(k, format_bytes(v)) for k, v in largest(predicted.bytes_by_part)]
    lines = [
        title(document),
        f"step    {format_seconds(predicted.seconds)} predicted{_parts(times)}",
        f"memory  {format_bytes(predicted.bytes)} a rank predicted{_parts(sizes)}",
        *(f"{name:<8}{text}" for name, text in facts(document)),
    ]
    return "\n".join(printable(line) for line in lines)


def title(document: Document) -> str:
    """Return what the plan is of: model, mesh, hardware."""
    hardware = document.hardware.get("name", "unnamed")
    precision = document.options.precision
    return (
        f"{document.model.class_name} on mesh {mesh_text(document)}: "
        f"{document.mesh.size} ranks, hardware {hardware}, "
        f"{'training' if document.options.train else 'inference'}"
        f"{f' in {precision}' if precision else ''}"
    )


def facts(document: Document) -> Iterator[tuple[str, str]]:
    """Yield what there is to say of the whole plan, beside what it predicts."""
    search = document.search
    gap = "gap unknown" if search.gap is None else f"gap {search.gap:.2%}"
    yield "split", f"{document.split_fraction:.1%} of the flops over all ranks"
    yield (
        "whole",
        f"{document.replicated_fraction:.1%} of the compute time is of ops that "
        "several ranks repeat",
    )
    yield (
        "search",
        f"{search.solver}: {search.status}, {gap}, {format_seconds(search.seconds)}",
    )
    for part, hidden_s in largest(document.predicted.hidden_by_part):
        beside = f"{format_seconds(hidden_s)} more of {part} pass while ranks compute"
        yield "beside", beside
    if search.memory_price:
        yield "room", say_memory_price(search.memory_price)
    if search.tried:
        yield "tried", _tried(search.tried)
    yield from _soft_pins(document)
    if document.recompute:
        yield "again", _again(document)
    if len(document.stages) > 1 or document.microbatches > 1:
        yield (
            "stages",
            f"{len(document.stages)}, schedule {document.schedule.name}, "
            f"{document.microbatches} microbatches",
        )


def say_memory_price(seconds_per_byte: float) -> str:
    """Say what room is worth where a memory limit binds.

    >>> say_memory_price(2e-12)
    '1 MiB more on a rank would save about 2.1 us a step'
    """
    saved = format_seconds(seconds_per_byte * 2**20)
    return f"1 MiB more on a rank would save about {saved} a step"


def _tried(tried: Sequence[Tried]) -> str:
    """Say how many ways were compared, and which is the second."""
    found = sorted((row.seconds, row.way) for row in tried if row.seconds is not None)
    second = (
        f"; second: {found[1][1]}, {format_seconds(found[1][0])}" if found[1:] else ""
    )
    return f"{len(tried)} ways, {len(tried) - len(found)} without a plan{second}"


def _soft_pins(document: Document) -> Iterator[tuple[str, str]]:
    """Say how many soft pins hold, and name the first that does not."""
    soft = [one for one in find_asked(document).values() if not one.pin.is_hard]
    broken = [one for one in soft if not one.is_followed]
    if soft:
        first = f"; not {broken[0].key}, by {broken[0].name!r}" if broken else ""
        kept = len(soft) - len(broken)
        yield "pins", f"{kept} of {len(soft)} soft ones followed{first}"


def _again(document: Document) -> str:
    """Say how much is made again for the backward, and what that takes."""
    boxed = {boxing.key: boxing for boxing in document.boxings}
    keys = [again_key(key) for key in document.recompute]
    nodes = [document.nodes[key] for key in keys if key in document.nodes]
    boxings = [boxed[key] for key in keys if key in boxed]
    parts: list[str] = []
    for items, one, many in ((nodes, "node", "nodes"), (boxings, "boxing", "boxings")):
        if items:
            seconds = format_seconds(sum(item.seconds for item in items))
            parts.append(f"{len(items)} {one if len(items) == 1 else many} ({seconds})")
    return f"{' and '.join(parts)} made again for the backward"


def grouped(items: Iterable[T], row: Callable[[T], Row]) -> dict[Row, list[T]]:
    """Return items by what their row says: those of repeated blocks come together."""
    groups: dict[Row, list[T]] = {}
    for item in items:
        groups.setdefault(row(item), []).append(item)
    return groups


def _in_order(document: Document) -> list[tuple[str, Parameter]]:
    """Return the parameters in the order in which they enter the program."""
    roles = (document.nodes[key].role for key in document.order)
    names = [role.name for role in roles if role]
    found = {name: document.parameters.get(name) for name in names}
    held = {name: parameter for name, parameter in found.items() if parameter}
    return list({**held, **document.parameters}.items())


def parameter_rows(document: Document) -> list[tuple[Row, Parameter]]:
    """Return the rows of the table of parameters, with the first that each is of."""

    def row(item: tuple[str, Parameter]) -> Row:
        name, parameter = item
        held = parameter.placements
        others = (held.use, held.gradient, held.optimizer)
        same = [str(other) if other != held.storage else "same" for other in others]
        return (pattern(name), str(parameter.type), str(held.storage), *same)

    groups = grouped(_in_order(document), row)
    return [
        (
            (cells[0] if len(group) > 1 else group[0][0], f"x{len(group)}", *cells[1:]),
            group[0][1],
        )
        for cells, group in groups.items()
    ]


def _buffers(document: Document) -> Table:
    groups = grouped(
        document.buffers.items(),
        lambda item: (pattern(item[0]), str(item[1].type), str(item[1].placement)),
    )
    rows = [(name, f"x{len(group)}", *rest) for (name, *rest), group in groups.items()]
    return Table(("buffer", "", "type", "placement"), rows)


def _stages(document: Document) -> Table:
    head = ("stage", "ranks", "mesh", "calls", "time of its calls", "microbatches held")
    if len(document.stages) == 1:
        return Table(head, ())
    live = document.schedule.most_live
    rows: list[Row] = []
    for number, stage in enumerate(document.stages):
        nodes = (document.nodes[key] for key in stage.nodes)
        calls = [node for node in nodes if node.role is None]
        rows.append(
            (
                str(number),
                f"{min(stage.ranks)}-{max(stage.ranks)}",
                str(stage.mesh),
                str(len(calls)),
                format_seconds(sum(node.seconds for node in calls)),
                str(live[number]),
            )
        )
    return Table(head, rows)


def _transfers(document: Document) -> Table:
    def row(item: Transfer) -> Row:
        change = f"{item.source} -> {item.target}"
        return (f"{item.sender} -> {item.receiver}", str(item.kind), change)

    rows = [
        (
            *cells,
            f"x{len(group)}",
            format_bytes(sum(item.bytes for item in group)),
            format_seconds(sum(item.seconds for item in group)),
        )
        for cells, group in grouped(document.transfers, row).items()
    ]
    head = ("stages", "handed over", "from -> to", "", "bytes", "time each time")
    return Table(head, rows)


def collective_table(document: Document) -> Table:
    """Return which collectives run along which axis."""
    rows = [
        (total.kind, total.axis, str(total.count), format_bytes(total.bytes))
        for total in document.collectives
    ]
    return Table(("collective", "axis", "count", "payload of a rank"), rows)


def _users(boxing: Boxing) -> str:
    first, *others = boxing.consumers or ("nobody",)
    return f"{first} and {len(others)} more" if others else first


def _boxings(document: Document, most_rows: int) -> Table:
    def row(boxing: Boxing) -> Row:
        steps = ", ".join(str(step) for step in boxing.lowering)
        change = f"{boxing.source} -> {boxing.target}"
        return (pattern(str(boxing.ref)), change, steps, pattern(_users(boxing)))

    groups = grouped(document.boxings, row)
    slowest = sorted(
        groups.items(), key=lambda item: -sum(boxing.seconds for boxing in item[1])
    )
    rows = [
        (
            cells[0] if len(group) > 1 else str(group[0].ref),
            f"x{len(group)}",
            *cells[1:3],
            format_bytes(sum(boxing.bytes for boxing in group)),
            format_seconds(sum(boxing.seconds for boxing in group)),
            cells[3] if len(group) > 1 else _users(group[0]),
        )
        for cells, group in slowest[:most_rows]
    ]
    head = ("boxing of", "", "from -> to", "by", "bytes", "time", "for")
    more = len(slowest) - len(rows)
    below = [f"... and {more} more kinds, all of them quicker"] if more else []
    if document.buckets:
        times = bucket_seconds(document).values()
        sent_s, alone_s = (format_seconds(sum(own)) for own in zip(*times, strict=True))
        num, size = len(times), sum(map(len, document.buckets))
        buckets = f"{num} bucket{'s' * (num > 1)}"
        below.append(
            f"{size} are sent in {buckets}: {sent_s} together, {alone_s} one by one"
        )
    return Table(head, rows, "\n".join(below))


def _reported(document: Document) -> Table:
    rows = [
        (item.op, str(len(item.nodes)), format_seconds(item.seconds), item.why)
        for item in document.reported
    ]
    return Table(("reported op", "nodes", "time", "what"), rows)
