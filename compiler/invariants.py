"""What must hold of a program between passes: one function per invariant."""

from __future__ import annotations

from torch import fx

from partita.compiler.errors import BadPlacement, InvariantViolation
from partita.compiler.ir.boxing import is_box
from partita.compiler.ir.layout import check_placement
from partita.compiler.ir.program import (
    OutputKind,
    Program,
    Value,
    has_info,
    info,
    operands,
    placement_of,
    type_of,
    value_of,
)
from partita.compiler.ir.signature import Signature


def well_formed(program: Program) -> None:
    """Check the graph itself.

    * fx finds it well ordered and owned
    * every node but getitem and the output has an info, with a key of its own
    * there is one role per placeholder and per output
    """
    try:
        program.graph.lint()
    except RuntimeError as error:
        raise InvariantViolation(f"the graph is malformed: {error}") from error
    seen: set[str] = set()
    for node in program.nodes():
        if not has_info(node):
            raise InvariantViolation(f"node {node.name} has no info")
        if info(node).key in seen:
            raise InvariantViolation(f"two nodes have the key {info(node).key!r}")
        seen.add(info(node).key)
    (output,) = program.graph.find_nodes(op="output")
    entering, leaving = program.graph.find_nodes(op="placeholder"), output.args[0]
    assert isinstance(leaving, tuple | list)
    for what, nodes, roles in (
        ("placeholders", entering, program.inputs),
        ("outputs", leaving, program.outputs),
    ):
        if len(nodes) != len(roles):
            raise InvariantViolation(f"{len(nodes)} {what} have {len(roles)} roles")


def placed(program: Program) -> None:
    """Check that every value has a legal placement.

    * every node has a signature, with one placement per operand and per result
    * each placement is legal for its tensor's shape on the mesh
    """
    mesh = program.mesh
    if mesh is None:
        raise InvariantViolation("the program has no mesh")
    for node in program.nodes():
        signature = _signature(node)
        used = operands(node)
        types = info(node).types
        if len(signature.operands) != len(used) or len(signature.results) != len(types):
            raise InvariantViolation(
                f"{_where(node)}: signature {signature} is for "
                f"{len(signature.operands)} operands and {len(signature.results)} "
                f"results; the node has {len(used)} and {len(types)}"
            )
        tensors = [
            *((type_of(v), p) for v, p in zip(used, signature.operands, strict=True)),
            *zip(types, signature.results, strict=True),
        ]
        for type_, placement in tensors:
            if (type_ is None) != (placement is None):
                raise InvariantViolation(
                    f"{_where(node)}: {signature} places what is no tensor, or leaves "
                    "a tensor without a placement"
                )
            if type_ is not None and placement is not None:
                try:
                    check_placement(type_.shape, placement, mesh)
                except BadPlacement as error:
                    raise InvariantViolation(f"{_where(node)}: {error}") from error


def matched(program: Program) -> None:
    """Check that both ends of every edge agree.

    * a use sees the placement that its op asked for
    * a boxing makes of what it is given what it promises
    """
    for node in program.nodes():
        signature = _signature(node)
        for value, wanted in zip(operands(node), signature.operands, strict=True):
            made = placement_of(value)
            if made != wanted:
                raise InvariantViolation(
                    f"{_where(node)} wants {info(value.node).key} as {wanted}, found "
                    f"{made}"
                )
        if is_box(node):
            _, source, target = node.args
            promised = (str(signature.operands[0]), str(signature.results[0]))
            if (source, target) != promised:
                raise InvariantViolation(
                    f"{_where(node)} boxes {source} -> {target}, its signature says "
                    f"{' -> '.join(promised)}"
                )


def settled(program: Program) -> None:
    """Check what leaves the step.

    * nothing leaves partial
    * the loss leaves as ``B``
    * a mutated buffer leaves as it came
    """
    stored = {
        role.name: node for node, role in program.placeholders() if role.kind.is_state
    }
    for node, role in program.results():
        placement = placement_of(value_of(node))
        if placement.has_partial:
            raise InvariantViolation(f"{role.kind} {role.name} leaves as {placement}")
        if role.kind is OutputKind.LOSS and not placement.is_broadcast:
            raise InvariantViolation(f"the loss leaves as {placement}, not as B")
        if role.kind is OutputKind.MUTATED_BUFFER:
            home = placement_of(Value(stored[role.name], 0))
            if placement != home:
                raise InvariantViolation(
                    f"{role.kind} {role.name} leaves as {placement}, stored as {home}"
                )


def _signature(node: fx.Node) -> Signature:
    signature = info(node).signature
    if signature is None:
        raise InvariantViolation(f"{_where(node)} has no placements")
    return signature


def _where(node: fx.Node) -> str:
    fact = info(node)
    return f"{fact.key} ({fact.source})" if fact.source else fact.key
