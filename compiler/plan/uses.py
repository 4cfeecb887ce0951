"""Who uses which tensor of a plan, in which placement, and through which boxing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Boxing, Document, Ref


@dataclass(frozen=True, slots=True)
class Use:
    """One operand of a node, or one output (``consumer`` is its printed form)."""

    consumer: str
    position: int
    ref: Ref
    wanted: Placement


def find_uses(document: Document) -> Iterator[Use]:
    """Yield every use of a tensor: by the nodes, then by the outputs."""
    for key, node in document.nodes.items():
        pairs = zip(node.operands, node.signature.operands, strict=True)
        for position, (ref, wanted) in enumerate(pairs):
            yield Use(key, position, ref, wanted)
    for output in document.outputs:
        if output.value is not None and output.placement is not None:
            yield Use(str(output), 0, output.value, output.placement)


def produced(document: Document, ref: Ref) -> Placement:
    """Return the placement in which a tensor is made."""
    placement = document.nodes[ref.key].signature.results[ref.index]
    assert placement is not None, f"{ref} is no tensor"
    return placement


def type_of(document: Document, ref: Ref) -> TensorType:
    """Return the logical type of a tensor."""
    found = document.nodes[ref.key].types[ref.index]
    assert found is not None, f"{ref} is no tensor"
    return found


def boxings_by_target(document: Document) -> dict[tuple[Ref, Placement], Boxing]:
    """Return the boxings by the tensor they change and what it becomes."""
    return {(boxing.ref, boxing.target): boxing for boxing in document.boxings}
