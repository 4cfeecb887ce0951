"""A plan of several stages as it would be with another batch, its decisions kept.

Calls take what their formulas give, boxings and transfers what the search would price
them by; what neither knows takes what it takes. The step is then simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from partita.compiler.cost.boxing import step_seconds
from partita.compiler.cost.op_formula import factor_name
from partita.compiler.cost.step import Step, find_step
from partita.compiler.cost.transfer import hop_seconds
from partita.compiler.errors import BadOptions
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.stages import at_stage
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.buckets import Sent
from partita.compiler.plan.document import Boxing, Document, Node, Ref
from partita.compiler.plan.explain_formula import call_formula
from partita.compiler.plan.stage_records import Transfer
from partita.compiler.plan.stages import stage_documents
from partita.compiler.plan.uses import times_in_step, type_of
from partita.compiler.plan.wires import Wire, wires_of
from partita.compiler.simulate.hidden import one_by_one, with_hidden
from partita.compiler.simulate.plan import seconds_by_part, simulate_step
from partita.plots.batch_dims import BatchDims


def pipeline_parts(
    document: Document, found: BatchDims, times: float
) -> Mapping[str, float]:
    """Return the parts of a pipeline's step with a batch ``times`` as large."""
    other = _Resized(document, found, times).document()
    return seconds_by_part(other, simulate_step(other))


def hidden_parts(
    document: Document, found: BatchDims, times: float
) -> Mapping[str, float]:
    """Return what passes beside computing with a batch ``times`` as large, by part."""
    other = _Resized(document, found, times).document()
    return with_hidden(one_by_one(document.predicted), other).hidden_by_part


def boxing_step_s(
    document: Document, boxing: Boxing, number: int, type_: TensorType, mesh: Mesh
) -> float:
    """Return what a step of a boxing takes in a step, of that type on that mesh.

    Raises:
        BadOptions: where there is no such step between the two placements.
    """
    step = _step(boxing, number, type_, mesh)
    hardware = Hardware.from_dict(document.hardware)
    times = times_in_step(boxing, document.microbatches)
    return times * step_seconds(type_, step, mesh, hardware)


def bucket_step_s(
    document: Document,
    parts: Sequence[tuple[Boxing, int]],
    types: Sequence[TensorType],
    mesh: Mesh,
) -> float:
    """Return what one collective of a bucket takes in a step.

    Args:
        document: the plan.
        parts: the boxings, and which of their steps it is of.
        types: of what they are of.
        mesh: the ranks.

    Raises:
        BadOptions: as ``boxing_step_s`` does.
    """
    steps = tuple(
        (type_, _step(boxing, number, type_, mesh))
        for (boxing, number), type_ in zip(parts, types, strict=True)
    )
    times = times_in_step(parts[0][0], document.microbatches)
    hardware = Hardware.from_dict(document.hardware)
    return Sent(steps, mesh, times).seconds(hardware)


def _step(boxing: Boxing, number: int, type_: TensorType, mesh: Mesh) -> Step:
    before = boxing.lowering[number - 1].after if number else boxing.source
    stated = boxing.lowering[number]
    axis = mesh.axis(stated.axis)
    step = find_step(type_.shape, before, stated.after, axis, mesh)
    if step is None:
        raise BadOptions(
            f"{boxing.ref} as {type_} on {mesh} cannot pass from {before} to "
            f"{stated.after}, as the plan does"
        )
    return step


def grown(type_: TensorType, ref: Ref, found: BatchDims, times: float) -> TensorType:
    """Return the type of a tensor with a batch ``times`` as large."""
    shape = tuple(
        round(size * times) if (ref, dim) in found.dims else size
        for dim, size in enumerate(type_.shape)
    )
    return replace(type_, shape=shape)


class _Resized:
    def __init__(self, whole: Document, found: BatchDims, times: float) -> None:
        self.whole = whole
        self.found = found
        self.times = times
        self.stages = stage_documents(whole)

    def document(self) -> Document:
        """Return the plan with other seconds."""
        whole = self.whole
        return replace(
            whole,
            nodes={key: self._node(key, node) for key, node in whole.nodes.items()},
            boxings=tuple(map(self._boxing, whole.boxings)),
            transfers=tuple(map(self._transfer, wires_of(whole))),
        )

    def _node(self, key: str, node: Node) -> Node:
        formula = call_formula(self.stages[node.stage], key) if node.seconds else None
        if formula is None:
            return node
        mesh, sizes = self.stages[node.stage].mesh, self.found.factors.get(key, {})
        changed = {factor_name(f, mesh): n * self.times for f, n in sizes.items()}
        return replace(node, seconds=formula.evaluate_at(changed))

    def _boxing(self, boxing: Boxing) -> Boxing:
        own = self.stages[self.whole.nodes[boxing.producer].stage]
        type_ = type_of(self.whole, boxing.ref)
        other = grown(type_, boxing.ref, self.found, self.times)
        lowering = tuple(
            replace(stated, seconds=boxing_step_s(own, boxing, number, other, own.mesh))
            for number, stated in enumerate(boxing.lowering)
        )
        return replace(boxing, lowering=lowering)

    def _transfer(self, wire: Wire) -> Transfer:
        moved = wire.transfer
        if not wire.kind.is_of_microbatch:
            return moved
        ref = Ref(at_stage(moved.name, moved.receiver))
        shape = grown(wire.type, ref, self.found, self.times).shape
        hardware = Hardware.from_dict(self.whole.hardware)
        ends = wire.source, wire.target
        seconds = hop_seconds(shape, wire.type.dtype, *ends, hardware)
        return replace(moved, seconds=seconds)
