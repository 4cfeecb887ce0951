"""Who uses which tensor of a plan, in which placement, and through which boxing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from partita.compiler.ir.again import phase_of_output
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind, Phase
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Boxing, Document, Node, Output, Ref
from partita.compiler.search.held import Held


@dataclass(frozen=True, slots=True)
class Use:
    """One operand of a node, or one output (``consumer`` is its printed form).

    ``phase`` is that of the node; outputs leave in the forward, gradients after it.
    """

    consumer: str
    position: int
    ref: Ref
    wanted: Placement
    phase: Phase

    @property
    def asks(self) -> tuple[str, Ref, Placement]:
        """Who wants which tensor how."""
        return self.consumer, self.ref, self.wanted


def find_uses(document: Document) -> Iterator[Use]:
    """Yield every use of a tensor: by the nodes, then by the outputs."""
    for key, node in document.nodes.items():
        pairs = zip(node.operands, node.signature.operands, strict=True)
        for position, (ref, wanted) in enumerate(pairs):
            yield Use(key, position, ref, wanted, node.phase)
    for output in document.outputs:
        if output.value is not None and output.placement is not None:
            phase = phase_of_output(output.kind)
            yield Use(str(output), 0, output.value, output.placement, phase)


def handed_over(document: Document) -> Iterator[Output]:
    """Yield the outputs that a step holds to its end: those that there are.

    Training hands the model's own outputs to nobody: what of them leaves as it is made
    is let go of with its last use.
    """
    boxings = boxings_by_use(document) if document.options.train else {}
    for output in document.outputs:
        if output.value is None or output.placement is None:
            continue
        asks = str(output), output.value, output.placement
        is_of_model = output.kind is OutputKind.OUTPUT
        if not (document.options.train and is_of_model and asks not in boxings):
            yield output


def held_of(document: Document, node: Node) -> Held | None:
    """Return how a parameter that is trained is held apart from its storage."""
    if node.role is None or node.role.kind is not InputKind.PARAMETER:
        return None
    own = document.parameters[node.role.name].placements
    if own.gradient is None or own.optimizer is None:
        return None
    return Held(own.gradient, own.optimizer)


def parameter_uses(document: Document) -> dict[str, list[Placement]]:
    """Return how calls take each parameter, the first of them first, by its name.

    A copy in fewer bits is taken in place of the parameter; what makes it comes last.
    """
    names = {
        key: node.role.name
        for key, node in document.nodes.items()
        if node.role is not None and node.role.kind is InputKind.PARAMETER
    }
    found: dict[str, list[Placement]] = {}
    copied: dict[str, list[Placement]] = {}
    for key in document.order:
        node = document.nodes[key]
        is_copy = is_short_copy(document, node)
        uses = copied if is_copy else found
        for ref, wanted in zip(node.operands, node.signature.operands, strict=True):
            if ref.key in names:
                uses.setdefault(names[ref.key], []).append(wanted)
                names |= {key: names[ref.key]} if is_copy else {}
    return {
        name: [*found.get(name, ()), *copied.get(name, ())]
        for name in (*found, *copied)
    }


def is_short_copy(document: Document, node: Node) -> bool:
    """Whether a call makes a copy of its only operand in fewer bits."""
    if len(node.operands) != 1 or len(node.types) != 1 or node.types[0] is None:
        return False
    return node.types[0].is_short(type_of(document, node.operands[0]))


def mesh_of(document: Document, key: str) -> Mesh:
    """Return the mesh that a node is on; the plan of one stage has no other."""
    if len(document.stages) == 1:
        return document.stages[0].mesh
    return document.stages[document.nodes[key].stage].mesh


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


def boxings_by_use(document: Document) -> dict[tuple[str, Ref, Placement], Boxing]:
    """Return the boxings by who wants which tensor how: ``use.asks``."""
    return {
        (consumer, boxing.ref, boxing.target): boxing
        for boxing in document.boxings
        for consumer in boxing.consumers
    }


def completes(boxing: Boxing) -> bool:
    """Whether it gives gradients and the loss their last placement, and no more.

    Then it works on what has been added up over the microbatches.
    """
    kinds = {user.partition(":")[0] for user in boxing.consumers}
    return kinds <= {kind.value for kind in OutputKind if kind.adds_up}


def times_in_step(boxing: Boxing, microbatches: int) -> int:
    """Return how often a step of so many microbatches carries ``boxing`` out."""
    is_once = microbatches == 1 or boxing.enters or completes(boxing)
    return 1 if is_once else microbatches


def storage_key(parameter: str, storage: Placement) -> str:
    """Return the key of the boxing that brings a parameter from optimizer to storage.

    ``parameter`` is the key of its node.

    >>> storage_key("parameter:up.weight", Placement.parse("(B,)"))
    'parameter:up.weight~optimizer -> (B,)'
    """
    return f"{parameter}~optimizer -> {storage}"
