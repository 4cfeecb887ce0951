"""Why a tensor is boxed: where, between which placements, and what removes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from partita.compiler.cost.collectives import CollectiveKind, carried_out
from partita.compiler.hardware.profile import load_hardware
from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.beside import sums_beside
from partita.compiler.plan.buckets import bucket_seconds, bucket_sent
from partita.compiler.plan.document import Boxing, Document, LoweringStep, Ref
from partita.compiler.plan.explain_costs import short, signed
from partita.compiler.plan.explain_formula import print_formula, step_formula
from partita.compiler.plan.table import format_table
from partita.compiler.plan.turns import END
from partita.compiler.plan.units import format_bytes, format_seconds
from partita.compiler.plan.uses import type_of


def explain_boxing(document: Document, boxing: Boxing) -> Iterator[str]:
    """Yield why a tensor is boxed so."""
    made = document.nodes[boxing.producer]
    yield f"{boxing.key}: boxing of {type_of(document, boxing.ref)}"
    yield f"  made       as {boxing.source} by {_line_of(document, boxing.producer)}"
    for consumer in boxing.consumers:
        yield f"  wanted     as {boxing.target} by {_line_of(document, consumer)}"
    yield (
        f"  takes      {format_seconds(boxing.seconds)}, "
        f"{format_bytes(boxing.bytes)} sent by a rank"
    )
    bucket = bucket_of(document, boxing)
    if bucket:
        yield f"  bucket     {sent_together(document, bucket)}"
        yield from _carried_together(document, bucket)
    overlap = load_hardware(document.hardware).overlap
    if overlap and document.microbatches == 1 and boxing.key in sums_beside(document):
        yield (
            "  beside     nothing waits for it: in a second of it ranks compute for "
            f"{overlap:g} s of others, while there are any"
        )
    first = bucket[0] if bucket else boxing.key
    if first in document.ahead:
        yield f"  ahead      it starts before {document.ahead[first]}"
    if first in document.late:
        place = document.late[first]
        until = "behind all others" if place == END else f"before {place}"
        yield f"  late       it is waited for {until}"
    if boxing.enters:
        name = made.role.name if made.role else boxing.producer
        yield f"  why        {name} is updated in one placement, stored in another"
    ways = [] if boxing.enters else list(removals(document, boxing))
    for what, seconds in ways:
        alone = ", sent one by one" if bucket else ""
        yield f"  without    {signed(seconds)} a step{alone}, if {what}"
    if not ways:
        yield "  without    no alternative that the plan keeps does without it"
    rows = [
        (
            f"{step}{_carried_out(document, step, is_alone=not bucket)}",
            str(step.after),
            format_bytes(step.payload),
            format_bytes(step.bytes),
            format_seconds(step.seconds),
        )
        for step in boxing.lowering
    ]
    yield ""
    yield format_table(("step", "placement", "payload", "sent", "time"), rows)
    for number in range(len(boxing.lowering)):
        formula = step_formula(document, boxing, number)
        if formula is not None:
            yield ""
            yield from print_formula(formula)


def bucket_of(document: Document, boxing: Boxing) -> tuple[str, ...]:
    """Return the keys of the boxings that one is sent with; none if by itself."""
    return next((keys for keys in document.buckets if boxing.key in keys), ())


def sent_together(document: Document, bucket: tuple[str, ...]) -> str:
    """Return with how many others a boxing is sent, and what that saves."""
    sent_s, alone_s = map(format_seconds, bucket_seconds(document)[bucket])
    others = f"{len(bucket) - 1} other{'s' * (len(bucket) > 2)}"
    return f"with {others}: {sent_s} together, {alone_s} one by one"


def _carried_together(document: Document, bucket: Sequence[str]) -> Iterator[str]:
    """Yield as what else the messages of a bucket are carried out."""
    members = [boxing for boxing in document.boxings if boxing.key in bucket]
    hardware = load_hardware(document.hardware)
    for sent in bucket_sent(document, members):
        carried = sent.carried_out(hardware)
        if str(carried) != sent.kind:
            yield f"  sent       {sent.kind} {sent.axis} as {carried}"


def _carried_out(document: Document, step: LoweringStep, *, is_alone: bool) -> str:
    """Return as what else a step's collective is carried out, if it is sent alone."""
    if not (is_alone and step.payload):
        return ""
    kind, mesh = CollectiveKind(step.kind), document.mesh
    hardware, axis = load_hardware(document.hardware), mesh.axis(step.axis)
    carried, _ = carried_out(kind, step.payload, mesh, axis, hardware)
    return "" if carried is kind else f" as {carried}"


def _line_of(document: Document, key: str) -> str:
    """Return a node or output and the line of the user's model that it comes from."""
    node = document.nodes.get(key)
    if node is None or not (node.source or node.module):
        return key
    return f"{key} ({node.source or '?'} in {node.module or 'the model itself'})"


def removals(document: Document, boxing: Boxing) -> Iterator[tuple[str, float]]:
    """Yield the ways to do without a boxing, and what the step would take more by each.

    What makes the tensor makes it as it is wanted; or all that want it otherwise take
    it as it is made, each as cheaply as its alternatives allow. Only alternatives that
    the plan keeps are known. That of several consumers is a sum of single changes.
    """
    ref, source, target = boxing.ref, boxing.source, boxing.target
    made = [
        other.seconds
        for other in _alternatives(document, boxing.producer)
        if other.signature.results[ref.index] == target
    ]
    if made:
        yield f"{boxing.producer} makes it as {target}", min(made)
    total = 0.0
    for consumer in boxing.consumers:
        node = document.nodes.get(consumer)
        taken = [
            other.seconds
            for other in _alternatives(document, consumer)
            if node is not None and _takes(node.operands, other, ref, source)
        ]
        if not taken:
            return
        total += min(taken)
    if len(boxing.consumers) > 1:  # each change by itself leaves it to the others
        total -= boxing.seconds
    who = short(boxing.consumers)
    yield (
        f"{who} {'take' if len(boxing.consumers) > 1 else 'takes'} it as {source}",
        (total),
    )


def _takes(
    operands: Sequence[Ref], other: Alternative, ref: Ref, source: Placement
) -> bool:
    pairs = zip(operands, other.signature.operands, strict=True)
    return all(wanted == source for own, wanted in pairs if own == ref)


def _alternatives(document: Document, key: str) -> Sequence[Alternative]:
    node = document.nodes.get(key)
    return node.alternatives if node else ()
