"""What a placement costs beside its alternatives: seconds and bytes, by part."""

from __future__ import annotations

from collections.abc import Sequence

from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.cost.optimizer_memory import state_bytes
from partita.compiler.ir.signature import Signature
from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.table import format_table
from partita.compiler.plan.units import format_bytes, format_seconds
from partita.compiler.plan.uses import find_uses, held_of, produced
from partita.compiler.search.held import Held

HEAD = ("placement", "cost", "compute", "boxings", "sent", "held", "boxed for")

ROUNDING_S = 1e-14
"""Far below what any op takes: sums in another order differ by as much."""


def costs_table(
    document: Document,
    key: str,
    seconds: float,
    signature: Signature,
    alternatives: Sequence[Alternative],
) -> str:
    """Return a table of the placement that was chosen and of each alternative.

    The first row has what the op itself takes, and the boxings of all that it uses and
    makes; the others what the whole step takes more. ``held`` is what the largest rank
    has of its results, of a parameter that is trained with its optimizer's state. The
    last column names who is handed a tensor that it wants otherwise, which is what
    makes a placement dear.

    Args:
        document: the plan.
        key: of a node, or of an op that is taken apart.
        seconds: what it takes.
        signature: that which was chosen.
        alternatives: others.
    """
    boxings = touching(document, key)
    node = document.nodes.get(key)
    held = None if node is None else held_of(document, node)
    chosen = (
        _print_choice(signature, held),
        "chosen",
        format_seconds(seconds),
        format_seconds(sum(boxing.seconds for boxing in boxings)),
        format_bytes(sum(boxing.bytes for boxing in boxings)),
        _held(document, key),
        short(boxed_for(document, key, signature)),
    )
    others = [
        (
            _print_choice(other.signature, other.held),
            f"{signed(other.seconds)} a step",
            signed(other.compute_s),
            signed(other.seconds - other.compute_s),
            _signed_bytes(other.bytes),
            _signed_bytes(other.held_bytes),
            short(boxed_for(document, key, other.signature)),
        )
        for other in alternatives
    ]
    return format_table(HEAD, [chosen, *others])


def _held(document: Document, key: str) -> str:
    node = document.nodes.get(key)
    if node is None:  # taken apart: its parts hold their own
        return ""
    pairs = [
        (type_, placement)
        for type_, placement in zip(node.types, node.signature.results, strict=True)
        if type_ is not None and placement is not None
    ]
    mesh, held = document.mesh, held_of(document, node)
    stored = sum(held_bytes(type_, placement, mesh) for type_, placement in pairs)
    if held is None:
        return format_bytes(stored)
    ((type_, storage),) = pairs
    is_apart = held.optimizer != storage
    piece = held_bytes(type_, held.optimizer, mesh) if is_apart else None
    optimizer, size = document.options.optimizer, type_.dtype.itemsize
    return format_bytes(state_bytes(optimizer, stored, piece, size))


def boxed_for(document: Document, key: str, signature: Signature) -> list[str]:
    """Return what would be boxed if a node had this signature: operands, consumers."""
    node = document.nodes.get(key)
    found: list[str] = []
    if node is not None:
        pairs = zip(node.operands, signature.operands, strict=True)
        found += [f"its {ref}" for ref, w in pairs if produced(document, ref) != w]
    found += [
        use.consumer
        for use in find_uses(document)
        if use.ref.key == key and use.wanted != signature.results[use.ref.index]
    ]
    return list(dict.fromkeys(found))


def print_signature(signature: Signature) -> str:
    """Return a signature as text; of what enters the program, its placement."""
    return str(signature).removeprefix(" -> ")


def _print_choice(signature: Signature, held: Held | None) -> str:
    """Return a signature as text, and how a parameter is held apart from it."""
    text, stored = print_signature(signature), signature.results[:1]
    if held is None or (held.gradient, held.optimizer) == stored * 2:
        return text
    if held.gradient != held.optimizer:
        text += f", reduced to {held.gradient}"
    return f"{text}, updated as {held.optimizer}"


def signed(seconds: float) -> str:
    """Return a difference of times as text; what rounding leaves is none."""
    known = seconds if abs(seconds) > ROUNDING_S else 0.0
    text = format_seconds(known)
    return text if known < 0 else f"+{text}"


def _signed_bytes(count: int) -> str:
    text = format_bytes(count)
    return text if count < 0 else f"+{text}"


def touching(document: Document, key: str) -> list[Boxing]:
    """Return the boxings of what a node makes and of what it uses."""
    whole = document.expanded.get(key)
    keys = {key, *(whole.nodes if whole else ())}
    return [
        boxing
        for boxing in document.boxings
        if boxing.producer in keys or keys & {*boxing.consumers}
    ]


def short(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    first, *others = names or ("",)
    return f"{first} and {len(others)} more" if others else first
