"""Which ranks hold alike, so that the memory of one of them tells that of all."""

from __future__ import annotations

from collections.abc import Iterator

from partita.compiler.cost.boxing_memory import links
from partita.compiler.cost.step import Step, find_step
from partita.compiler.ir.layout import has_cut_chunks, shard_shape
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Boxing, Document
from partita.compiler.plan.uses import type_of


def unlike_ranks(document: Document) -> list[tuple[int, ...]]:
    """Return the first of all ranks that hold alike, one for each way of holding.

    Where no axis cuts the chunks of another at segments of its own, the first rank
    holds most. Else what a rank holds is the shapes of its shards, and what the steps
    of its boxings allocate.
    """
    mesh = document.mesh
    placed = {p for n in document.nodes.values() for p in n.signature.results if p}
    if not any(map(has_cut_chunks, placed)):
        return [(0,) * mesh.ndim]
    shards, steps = _shards_and_steps(document)
    device = str(document.hardware["device"]["kind"])
    first: dict[object, tuple[int, ...]] = {}
    for at in mesh.all_coordinates():
        kind = (
            tuple(shard_shape(shape, p, mesh, at) for shape, p in shards),
            tuple(
                links(type_, step, mesh, at, in_order=in_order, device=device)
                for type_, step in steps
                for in_order in (False, True)
            ),
        )
        first.setdefault(kind, at)
    return list(first.values())


def _shards_and_steps(
    document: Document,
) -> tuple[list[tuple[tuple[int, ...], Placement]], list[tuple[TensorType, Step]]]:
    """Return the shapes and placements of all that is held, and all steps, once."""
    held: list[tuple[TensorType | None, Placement | None]] = []
    for node in document.nodes.values():
        held += zip(node.types, node.signature.results, strict=True)
    for parameter in document.parameters.values():
        held.append((parameter.type, parameter.placements.optimizer))
    for output in document.outputs:
        if output.value is not None:
            held.append((type_of(document, output.value), output.placement))
    steps: dict[tuple[TensorType, Step], None] = {}
    for boxing in document.boxings:
        type_ = type_of(document, boxing.ref)
        for step in steps_of(document, boxing):
            steps[type_, step] = None
            held.append((type_, step.after))
    shards = {(t.shape, p): None for t, p in held if t is not None and p is not None}
    return list(shards), list(steps)


def steps_of(document: Document, boxing: Boxing) -> Iterator[Step]:
    """Yield the steps of a boxing, as its lowering states them."""
    shape, at = type_of(document, boxing.ref).shape, boxing.source
    for stated in boxing.lowering:
        axis = document.mesh.axis(stated.axis)
        step = find_step(shape, at, stated.after, axis, document.mesh)
        assert step is not None, f"{boxing.key} has no step to {stated.after}"
        yield step
        at = stated.after
