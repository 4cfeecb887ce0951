"""Say why a tensor is placed as it is, from what the plan alone holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from difflib import get_close_matches

from partita.compiler.errors import BadOptions
from partita.compiler.ir.again import again_key, is_again
from partita.compiler.ir.program import InputKind, OutputKind
from partita.compiler.plan.asked import find_asked, own_pins
from partita.compiler.plan.document import Boxing, Document, Node
from partita.compiler.plan.explain_boxing import (
    bucket_of,
    explain_boxing,
    sent_together,
)
from partita.compiler.plan.explain_costs import (
    ROUNDING_S,
    costs_table,
    print_signature,
    touching,
)
from partita.compiler.plan.explain_formula import call_formula, print_formula
from partita.compiler.plan.stages import stage_document, stage_of_calls
from partita.compiler.plan.table import format_table, say_memory_price
from partita.compiler.plan.units import format_bytes, format_seconds, printable
from partita.compiler.plan.uses import boxings_by_use, find_uses, produced

_NAMELESS = (
    InputKind.COORDINATE,
    InputKind.MICROBATCH,
    InputKind.RECEIVED_FORWARD,
    InputKind.RECEIVED_BACKWARD,
    InputKind.SHARED,
)
"""What enters and nobody asks for by name: what has its name in another stage too."""


def explain(document: Document, name: str) -> str:
    """Return why a parameter, buffer, input or node is placed so, or why it is boxed.

    Raises:
        BadOptions: for an unknown name, with those closest to it.
    """
    key = find_key(document, name)
    if len(document.stages) > 1:
        stage = stage_of_calls(document).get(key, 0)
        own = stage_document(document, stage)
        pins = replace(own.options, pins=own_pins(own))
        document = replace(own, options=pins)
    boxing = next((b for b in document.boxings if b.key == name), None)
    if boxing is not None:
        return printable_lines(list(explain_boxing(document, boxing)))
    if key in document.expanded:
        return printable_lines(list(_parts(document, key)))
    node = document.nodes.get(key)
    if node is None:
        parts = [f"{name}: not used by the program", *_held(document, name)]
        return printable_lines(parts)
    parts = [
        *_head(document, name, key, node),
        *_held(document, parameter_of(node)),
        *_handed_over(document, key),
        *_again(document, key),
        *_reason(document, key, node),
        *_limit(document),
        "",
        costs_table(document, key, node.seconds, node.signature, node.alternatives),
        *_formula(document, key),
        *_moves(document, key),
    ]
    return printable_lines(parts)


def find_key(document: Document, name: str) -> str:
    """Return the key of the node behind a name; the name itself where there is none.

    Raises:
        BadOptions: for an unknown name, with those closest to it.
    """
    key = _names(document).get(name)
    if key is None:
        close = ", ".join(_close_names(document, name))
        hint = f"; close to it: {close}" if close else ""
        raise BadOptions(f"the plan has no parameter, input or node {name!r}{hint}")
    return key


def printable_lines(parts: list[str]) -> str:
    """Join parts, which may have several lines, into text safe for a terminal."""
    lines = [line for part in parts for line in part.split("\n")]
    return "\n".join(printable(line) for line in lines)


def _names(document: Document) -> dict[str, str]:
    """Return every name that can be asked for, and the node key it stands for."""
    held = {**document.parameters, **document.buffers}
    ends = {o.name: o.value.key for o in document.outputs if o.value is not None}
    roles = {
        node.role.name: key
        for key, node in reversed([*document.nodes.items()])  # the first has the name
        if node.role is not None and node.role.kind not in _NAMELESS
    }
    names = ends | {name: roles.get(name, name) for name in held}
    for name, value in held.items():
        names |= {alias: names[name] for alias in value.aliases}
    names |= roles
    names |= {str(o): o.value.key for o in document.outputs if o.value is not None}
    names |= {boxing.key: boxing.producer for boxing in document.boxings}
    return names | {key: key for key in (*document.nodes, *document.expanded)}


def _close_names(document: Document, name: str) -> list[str]:
    names = list(_names(document))
    inside = [other for other in names if name and name in other]
    return list(dict.fromkeys([*inside[:3], *get_close_matches(name, names, 3)]))[:4]


def _head(document: Document, name: str, key: str, node: Node) -> Iterator[str]:
    types = ", ".join(str(type_) for type_ in node.types)
    what = node.role.kind.value if node.role else node.op
    yield f"{name}: {what}, {types}"
    if key != name:
        yield f"  node       {key}"
    if node.source or node.module:
        module = node.module or "the model itself"
        yield f"  from       {node.source or '?'} in {module}"
    yield f"  placement  {print_signature(node.signature)} on {document.mesh}"


def _handed_over(document: Document, key: str) -> Iterator[str]:
    """Say on which stage a node is, and what other stages get of it or give it."""
    if len(document.stages) == 1:
        return
    node = document.nodes[key]
    ranks = document.stages[node.stage].ranks
    yield f"  stage      {node.stage}, ranks {', '.join(map(str, ranks))}"
    name = node.role.name if node.role else key
    for transfer in document.transfers:
        is_own = transfer.name == name or transfer.name.startswith(f"{key}#")
        if is_own and node.stage in (transfer.sender, transfer.receiver):
            often = "each microbatch" if transfer.kind.is_of_microbatch else "each step"
            price = format_bytes(transfer.bytes), format_seconds(transfer.seconds)
            yield (
                f"  handed     {transfer.kind}, stage {transfer.sender} to "
                f"{transfer.receiver}, {transfer.source} -> {transfer.target}, "
                f"{' and '.join(price)} {often}"
            )


def parameter_of(node: Node) -> str:
    """Return the name of the parameter that a node stands for; empty for all else.

    An input may have the name of a parameter.
    """
    role = node.role
    if role is None or role.kind not in (InputKind.PARAMETER, InputKind.SHARED):
        return ""
    return role.name


def _held(document: Document, name: str) -> Iterator[str]:
    parameter = document.parameters.get(name)
    if parameter is not None:
        held = parameter.placements
        yield f"  storage    {held.storage}"
        yield f"  use        {held.use}"
        yield f"  gradient   {held.gradient or 'none: not trained'}"
        yield f"  optimizer  {held.optimizer or 'none: not trained'}"
        for boxing in document.boxings:
            role = document.nodes[boxing.producer].role
            if boxing.enters and role is not None and role.name == name:
                steps, sent, time = _price(boxing)
                yield (
                    "  brought    once it changed, from optimizer to storage: "
                    f"{steps}, {sent}, {time}"
                )
        if parameter.aliases:
            yield f"  tied to    {', '.join(parameter.aliases)}"


def _again(document: Document, key: str) -> Iterator[str]:
    if key in document.recompute:
        yield f"  again      for the backward, as {again_key(key)}"
    if is_again(key):
        yield "  again      for the backward, since the first is not kept"
    for boxing in document.boxings:
        if boxing.producer == key and boxing.key in document.recompute:
            yield f"  again      to {boxing.target} for the backward, too"


def _reason(document: Document, key: str, node: Node) -> Iterator[str]:
    asked = find_asked(document).get(key)
    best = min(node.alternatives, key=lambda other: other.seconds, default=None)
    if asked is not None:
        yield f"  why        {asked}"
    elif best is None:
        yield "  why        the plan keeps no alternative to it"
    elif best.seconds >= -ROUNDING_S:
        yield "  why        the cheapest for the whole step; the next best stand below"
    else:
        search, gain = document.search, format_seconds(-best.seconds)
        yield (
            f"  why        taken although another would gain {gain} by itself "
            f"(search: {search.status})"
        )
        if search.memory_price and best.held_bytes > 0:
            held = format_bytes(best.held_bytes)
            worth = format_seconds(best.held_bytes * search.memory_price)
            yield f"             but hold {held} more, which are worth {worth}"
        for bucket in _buckets(document, key, node):
            yield f"             but is sent {sent_together(document, bucket)}"


def _buckets(document: Document, key: str, node: Node) -> list[tuple[str, ...]]:
    """Return what the messages around a node, or those of its gradient, are sent in.

    What its alternatives cost is told as if each were sent by itself.
    """
    keys = [key, *(_gradient(document, node.role.name) if node.role else ())]
    boxings = (boxing for own in keys for boxing in touching(document, own))
    found = (bucket_of(document, boxing) for boxing in boxings)
    return [bucket for bucket in dict.fromkeys(found) if bucket]


def _gradient(document: Document, name: str) -> Iterator[str]:
    """Yield the keys of a parameter's gradient, and of what it is a view of."""
    for output in document.outputs:
        if output.kind is OutputKind.GRADIENT and output.name == name and output.value:
            yield str(output)
            key = output.value.key
            while (node := document.nodes[key]).seconds == 0 and node.operands:
                yield key
                key = node.operands[0].key
            yield key


def _formula(document: Document, key: str) -> Iterator[str]:
    formula = call_formula(document, key)
    if formula is not None and formula.expr != 0:
        yield ""
        yield from print_formula(formula)


def _limit(document: Document) -> Iterator[str]:
    limit = document.options.memory_bytes
    if limit is not None:
        needed = format_bytes(document.predicted.bytes)
        yield f"  limit      {format_bytes(limit)} on a rank, {needed} predicted"
        if document.search.memory_price:
            yield f"  room       {say_memory_price(document.search.memory_price)}"


def _parts(document: Document, key: str) -> Iterator[str]:
    """Tell of an op that is taken apart: its own placement, then its parts."""
    item = document.expanded[key]
    parts = [(part, document.nodes[part]) for part in item.nodes]
    yield f"{key}: {item.op}, taken apart"
    yield f"  placement  {print_signature(item.signature)} on {document.mesh}"
    yield "  why        what it reduces or indexes is split; its parts allow that"
    seconds = sum(part.seconds for _, part in parts)
    yield ""
    yield costs_table(document, key, seconds, item.signature, item.alternatives)
    yield ""
    rows = [
        (name, print_signature(part.signature), format_seconds(part.seconds))
        for name, part in parts
    ]
    yield format_table(("part", "placement", "time"), rows)
    boxed = [b for b in document.boxings if b.producer in item.nodes]
    if boxed:
        yield ""
        moves = [(b.producer, f"{b.source} -> {b.target}", *_price(b)) for b in boxed]
        yield format_table(("re-placed", "placement", "by", "bytes", "time"), moves)


def _moves(document: Document, key: str) -> Iterator[str]:
    """Tell how operands arrive and where results go, with the price of each boxing."""
    boxings = boxings_by_use(document)
    arrives: list[tuple[str, ...]] = []
    leaves: list[tuple[str, ...]] = []
    for use in find_uses(document):
        boxing = boxings.get(use.asks)
        made = str(produced(document, use.ref))
        change = made if boxing is None else f"{made} -> {use.wanted}"
        if use.consumer == key:
            arrives.append((str(use.ref), change, *_price(boxing)))
        if use.ref.key == key:
            result = f" (result {use.ref.index})" if use.ref.index else ""
            leaves.append((f"{use.consumer}{result}", change, *_price(boxing)))
    for title, rows in (("operand", arrives), ("used by", leaves)):
        if rows:
            yield ""
            yield format_table((title, "placement", "by", "bytes", "time"), rows)


def _price(boxing: Boxing | None) -> tuple[str, str, str]:
    if boxing is None:
        return ("", "", "")
    steps = ", ".join(str(step) for step in boxing.lowering)
    return (steps, format_bytes(boxing.bytes), format_seconds(boxing.seconds))
