"""Which ranks hold alike, so that the memory of one of them tells that of all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from partita.compiler.cost.boxing_memory import links
from partita.compiler.cost.step import Step, find_step
from partita.compiler.ir.layout import (
    even_shard_shape,
    has_cut_chunks,
    shard_shape,
)
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement, Split
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
    signatures = {id(n.signature): n.signature for n in document.nodes.values()}
    placed = {p for one in signatures.values() for p in one.results if p}
    if not any(map(has_cut_chunks, placed)):
        return [(0,) * mesh.ndim]
    shards, steps = _shards_and_steps(document)
    device = str(document.hardware["device"]["kind"])
    kinds = _Kinds(mesh)
    for shape, placement in shards:
        if _is_uneven(shape, placement, mesh):
            kinds.add(
                _axes_of(placement),
                lambda at, s=shape, p=placement: shard_shape(s, p, mesh, at),
            )
    for type_, step in steps:
        placements = step.before, step.after
        if not any(_is_uneven(type_.shape, p, mesh) for p in placements):
            continue
        axes = {step.axis}.union(*map(_axes_of, placements))
        for in_order, enters in product((False, True), repeat=2):
            kinds.add(
                axes,
                lambda at, t=type_, s=step, o=in_order, e=enters: links(
                    t, s, mesh, at, in_order=o, enters=e, device=device
                ),
            )
    return kinds.first


def _is_uneven(shape: tuple[int, ...], placement: Placement, mesh: Mesh) -> bool:
    """Whether what ranks hold of a tensor may differ, or the pieces it lies in."""
    is_even = even_shard_shape(shape, placement, mesh) is not None
    return not is_even or has_cut_chunks(placement)


def _axes_of(placement: Placement) -> set[int]:
    """Return the axes that cut a tensor."""
    cuts = enumerate(placement.shardings)
    return {axis for axis, sharding in cuts if isinstance(sharding, Split)}


class _Kinds:
    """The kinds of ranks, told apart by one thing after another."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.kind: NDArray[np.int64] = np.zeros(mesh.sizes, np.int64)

    def add(self, axes: set[int], of: Callable[[tuple[int, ...]], Hashable]) -> None:
        """Tell ranks apart by what is ``of`` them, which follows from ``axes``."""
        sizes = [size if a in axes else 1 for a, size in enumerate(self.mesh.sizes)]
        numbers: dict[Hashable, int] = {}
        found = [
            numbers.setdefault(of(at), len(numbers))
            for at in product(*map(range, sizes))
        ]
        if len(numbers) == 1:
            return
        both = self.kind * len(numbers) + np.reshape(found, sizes)
        _, kind = np.unique(both, return_inverse=True)
        self.kind = kind.reshape(self.mesh.sizes)

    @property
    def first(self) -> list[tuple[int, ...]]:
        """The first rank of each kind, in the order of ranks."""
        _, first = np.unique(self.kind, return_index=True)
        return [self.mesh.coordinates(int(rank)) for rank in sorted(first)]


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
