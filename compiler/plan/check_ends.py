"""Check what enters and leaves a plan: its tensors, their types, where they live."""

from __future__ import annotations

from partita.compiler.errors import BadPlacement, BadPlan
from partita.compiler.ir.layout import check_placement
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Document, Node
from partita.compiler.plan.uses import type_of


def check_values(document: Document) -> None:
    """Check parameters and buffers, and the placeholders that bring them in."""
    for name, parameter in document.parameters.items():
        path = f"parameters.{name}"
        for stage in parameter.homes:
            if stage >= len(document.stages):
                raise BadPlan(f"{path}.homes: there is no stage {stage}")
        held = parameter.placements
        mesh = document.stages[min(parameter.homes, default=0)].mesh
        for kind in ("use", "storage", "gradient", "optimizer"):
            placement: Placement | None = getattr(held, kind)
            if placement is not None:
                place = f"{path}.placements.{kind}"
                check_legal(place, placement, parameter.type, mesh)
    for name, buffer in document.buffers.items():
        path = f"buffers.{name}.placement"
        check_legal(path, buffer.placement, buffer.type, document.mesh)
    for key, node in document.nodes.items():
        if node.role is not None:
            _check_role(document, key, node)


def _check_role(document: Document, key: str, node: Node) -> None:
    assert node.role is not None
    kind, name = node.role.kind, node.role.name
    wanted: tuple[TensorType, Placement | None]
    match kind:
        case InputKind.PARAMETER if name in document.parameters:
            parameter = document.parameters[name]
            wanted = (parameter.type, parameter.placements.storage)
        case InputKind.BUFFER if name in document.buffers:
            wanted = (document.buffers[name].type, document.buffers[name].placement)
        case InputKind.INPUT if name in document.inputs.tensors:
            wanted = (document.inputs.tensors[name], None)
        case InputKind.PARAMETER | InputKind.BUFFER | InputKind.INPUT:
            raise BadPlan(f"nodes.{key}.role: there is no {kind} {name!r}")
        case _:
            return
    parts = [wanted[0]]
    if kind is InputKind.INPUT and document.microbatches > 1:
        parts += _part_of_batch(wanted[0], document.microbatches)
    if node.types not in [(part,) for part in parts]:
        found = ", ".join(map(str, node.types))
        others = f", or {parts[1]} in each microbatch" if parts[1:] else ""
        raise BadPlan(
            f"nodes.{key}.types: found {found}, wanted {wanted[0]} of {name}{others}; "
            f"microbatches is {document.microbatches}"
        )
    if wanted[1] is not None and node.signature.results != (wanted[1],):
        found = node.signature.results[0]
        raise BadPlan(
            f"nodes.{key}.signature.results[0]: found {found}, wanted {wanted[1]}, the "
            f"placement of {kind} {name}"
        )


def check_is_cut(document: Document) -> None:
    """Check that each of several microbatches takes a part of the batch.

    It enters as that, or whole beside the number by which microbatches slice it.
    """
    count, tensors = document.microbatches, document.inputs.tensors
    roles = [
        (key, node, node.role) for key, node in document.nodes.items() if node.role
    ]
    if count == 1 or any(r.kind is InputKind.MICROBATCH for _, _, r in roles):
        return
    entering = [(k, n, r) for k, n, r in roles if r.kind is InputKind.INPUT]
    whole = [k for k, n, r in entering if n.types == (tensors.get(r.name),)]
    if entering and len(whole) == len(entering):
        (type_,) = document.nodes[whole[0]].types
        raise BadPlan(
            f"microbatches: found {count}, but {whole[0]} is {type_}, of the whole "
            f"batch; want 1, or a plan made for {count}"
        )


def _part_of_batch(type_: TensorType, count: int) -> list[TensorType]:
    """Return the type of a microbatch's part of an input, if it can be cut."""
    size, *others = type_.shape or (0,)
    if size < count or size % count:
        return []
    return [TensorType((size // count, *others), type_.dtype)]


def check_outputs(document: Document) -> None:
    """Check that every output is a tensor that leaves as one can, by no node's name."""
    for index, output in enumerate(document.outputs):
        path = f"outputs[{index}]"
        if str(output) in document.nodes:
            raise BadPlan(f"{path}: a node has the key {str(output)!r}")
        placement = output.placement
        if output.value is None:
            check_legal(f"{path}.placement", placement, None, document.mesh)
            continue
        mesh = document.stages[document.nodes[output.value.key].stage].mesh
        kind = type_of(document, output.value)
        check_legal(f"{path}.placement", placement, kind, mesh)
        is_loss = output.kind is OutputKind.LOSS
        if placement and (placement.has_partial or is_loss > placement.is_broadcast):
            wanted = "B on every axis" if is_loss else "one without partial sums"
            raise BadPlan(
                f"{path}.placement: found {placement}, wanted {wanted}, as it leaves"
            )


def check_legal(
    path: str, placement: Placement | None, type_: TensorType | None, mesh: Mesh
) -> None:
    """Check that a placement is one for a tensor on a mesh; for none there is none.

    Raises:
        BadPlan: ``path: found, wanted``.
    """
    if placement is None or type_ is None:
        if placement is not type_:
            wanted = "a placement" if placement is None else "null: it is no tensor"
            raise BadPlan(f"{path}: found {placement or 'null'}, wanted {wanted}")
        return
    try:
        check_placement(type_.shape, placement, mesh)
    except BadPlacement as error:
        raise BadPlan(f"{path}: {error}") from None
