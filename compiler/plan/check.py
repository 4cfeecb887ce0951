"""Check that what a plan says of its nodes, tensors and meshes holds together.

The schema has seen to the form; here every reference leads somewhere, every
placement is legal for its tensor, and every tensor arrives as it is wanted.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager

from partita.compiler.cost.step import find_step
from partita.compiler.errors import BadOptions, BadPlacement, BadPlan
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.again import is_again
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Phase
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.asked import check_pins
from partita.compiler.plan.check_again import check_again
from partita.compiler.plan.check_buckets import check_bucket_keys, check_buckets
from partita.compiler.plan.check_ends import (
    check_is_cut,
    check_legal,
    check_outputs,
    check_values,
)
from partita.compiler.plan.check_fusion import check_fusion, check_fusion_keys
from partita.compiler.plan.check_joined import check_joined
from partita.compiler.plan.check_stages import check_stages
from partita.compiler.plan.check_storage import check_storage
from partita.compiler.plan.check_turns import check_turn_keys, check_turns
from partita.compiler.plan.document import Boxing, Document, Node, Ref
from partita.compiler.plan.inputs import check_inputs, check_microbatches
from partita.compiler.plan.stages import stage_documents
from partita.compiler.plan.uses import find_uses, produced, type_of


def check(document: Document, where: str) -> None:
    """Check all of the above; ``where`` (the file) begins the message.

    Raises:
        BadPlan: ``where: key: found, wanted`` for the first thing that does not hold.
    """
    check_nodes(document, where)
    with _telling(where):
        check_turn_keys(document)
        for part in stage_documents(document):
            _check_boxings(part)
            check_joined(part)
            check_fusion(part)
        check_stages(document)


def check_nodes(document: Document, where: str) -> None:
    """Check all that does not depend on boxings; see ``check``."""
    with _telling(where):
        Hardware.from_dict(dict(document.hardware), "hardware")
        check_inputs(document.inputs)
        check_microbatches(document.microbatches, document.inputs)
        check_is_cut(document)
        _check_stages(document)
        _check_groups(document)
        check_fusion_keys(document)
        _check_makers(document)
        check_bucket_keys(document)
        check_pins(document)
        for part in stage_documents(document):
            _check_order(part)
            for key, node in part.nodes.items():
                _check_node(part, key, node)
            check_values(part)
            check_outputs(part)


@contextmanager
def _telling(where: str) -> Generator[None]:
    """Return a block whose errors say where they are."""
    try:
        yield
    except (BadPlan, BadPlacement, BadOptions) as error:
        raise BadPlan(f"{where}: {error}") from None
    except RecursionError:
        raise BadPlan(f"{where}: found too many nested brackets") from None


def _check_boxings(document: Document) -> None:
    """Check how tensors of a stage get to where they are wanted, and held."""
    for position, boxing in enumerate(document.boxings):
        _check_boxing(document, f"boxings[{position}]", boxing)
    check_again(document)
    _check_arrivals(document)
    check_storage(document)
    check_buckets(document)
    check_turns(document)


def _check_makers(document: Document) -> None:
    """Check that what belongs to the stage of a node names one."""
    _check_same_keys("order", document.order, document.nodes)
    for index, output in enumerate(document.outputs):
        if output.value is not None:
            _check_ref(document, f"outputs[{index}].value", output.value)
    for index, boxing in enumerate(document.boxings):
        _check_ref(document, f"boxings[{index}].producer", boxing.ref)


def _check_stages(document: Document) -> None:
    """Check that every node is in its stage, and that ranks fill each mesh."""
    if len(document.stages) == 1 and document.mesh != document.stages[0].mesh:
        raise BadPlan(
            f"mesh: found {document.mesh}, wanted {document.stages[0].mesh}, as in "
            "stages[0]"
        )
    rank_of = document.schedule.rank_of
    if len(document.stages) == 1 and rank_of != (0,):
        raise BadPlan(
            f"schedule.rank_of: found {list(rank_of)}, wanted [0] for the one stage"
        )
    listed = {key: i for i, stage in enumerate(document.stages) for key in stage.nodes}
    for key, node in document.nodes.items():
        if node.stage >= len(document.stages):
            last = len(document.stages) - 1
            raise BadPlan(
                f"nodes.{key}.stage: found {node.stage}, wanted at most {last}"
            )
        if listed.get(key, node.stage) != node.stage:
            raise BadPlan(
                f"nodes.{key}.stage: found {node.stage}, but stages[{listed[key]}] "
                "lists it; to cut otherwise, plan again"
            )
    for index, stage in enumerate(document.stages):
        path = f"stages[{index}]"
        found, wanted = len(set(stage.ranks)), stage.mesh.size
        if found != wanted or len(stage.ranks) != wanted:
            raise BadPlan(
                f"{path}.ranks: found {found}, wanted {wanted} for mesh {stage.mesh}"
            )
        held = {key for key, node in document.nodes.items() if node.stage == index}
        _check_same_keys(f"{path}.nodes", stage.nodes, held)


def _check_same_keys(
    path: str, found: Collection[str], wanted: Collection[str]
) -> None:
    missing, extra = set(wanted) - set(found), set(found) - set(wanted)
    if missing or extra:
        problem = "lacks" if missing else "has no such node:"
        raise BadPlan(f"{path}: {problem} {min(missing or extra)!r}")
    if len(found) != len(wanted):
        raise BadPlan(
            f"{path}: found {len(found)} keys, wanted {len(wanted)} once each"
        )


def _check_order(document: Document) -> None:
    """Check that the order has the makers of tensors before their users."""
    position = {key: index for index, key in enumerate(document.order)}
    for key, node in document.nodes.items():
        for index, ref in enumerate(node.operands):
            path = f"nodes.{key}.operands[{index}]"
            _check_ref(document, path, ref)
            if position[ref.key] >= position[key]:
                raise BadPlan(f"{path}: order has {ref.key!r} after its user")


def _check_ref(document: Document, path: str, ref: Ref) -> None:
    node = document.nodes.get(ref.key)
    if node is None:
        raise BadPlan(f"{path}: found {str(ref)!r}, wanted the key of a node")
    if ref.index >= len(node.types) or node.types[ref.index] is None:
        raise BadPlan(f"{path}: found {str(ref)!r}, but that node makes no such tensor")


def _check_node(document: Document, key: str, node: Node) -> None:
    """Check that its signatures fit its tensors."""
    path = f"nodes.{key}"
    if (node.role is not None) != (node.op == "placeholder"):
        raise BadPlan(f"{path}.role: wanted for a placeholder, and only there")
    mesh = document.stages[node.stage].mesh
    operands = [type_of(document, ref) for ref in node.operands]
    _check_signature(f"{path}.signature", node.signature, operands, node.types, mesh)
    for index, other in enumerate(node.alternatives):
        place = f"{path}.alternatives[{index}]"
        signature = other.signature
        _check_signature(f"{place}.signature", signature, operands, node.types, mesh)
        if other.held is not None:
            ends = other.held.gradient, other.held.optimizer
            for kind, placement in zip(("gradient", "optimizer"), ends, strict=True):
                check_legal(f"{place}.held.{kind}", placement, node.types[0], mesh)


def _check_signature(
    path: str,
    signature: Signature,
    operands: Iterable[TensorType],
    results: Iterable[TensorType | None],
    mesh: Mesh,
) -> None:
    sides = (
        ("operands", signature.operands, tuple(operands)),
        ("results", signature.results, tuple(results)),
    )
    for side, placements, types in sides:
        if len(placements) != len(types):
            raise BadPlan(
                f"{path}.{side}: found {len(placements)} entries, wanted {len(types)}"
            )
        for index, (placement, kind) in enumerate(zip(placements, types, strict=True)):
            check_legal(f"{path}.{side}[{index}]", placement, kind, mesh)


def _check_boxing(document: Document, path: str, boxing: Boxing) -> None:
    """Check that its steps lead, axis by axis, from what is made to its end."""
    made = boxing.source if boxing.enters else produced(document, boxing.ref)
    if boxing.source != made:
        raise BadPlan(
            f"{path}.from: found {boxing.source}, wanted {made} of {boxing.ref}"
        )
    mesh = document.stages[document.nodes[boxing.producer].stage].mesh
    type_ = type_of(document, boxing.ref)
    at = boxing.source
    for index, step in enumerate(boxing.lowering):
        place = f"{path}.lowering[{index}]"
        if step.axis not in mesh.names:
            known = ", ".join(mesh.names)
            raise BadPlan(f"{place}.axis: found {step.axis!r}, wanted one of {known}")
        check_legal(f"{place}.to", step.after, type_, mesh)
        axis = mesh.axis(step.axis)
        if step.after != at.with_axis(axis, step.after.shardings[axis]):
            raise BadPlan(
                f"{place}.to: found {step.after} after {at}, wanted a change on "
                f"{step.axis} alone"
            )
        known = find_step(type_.shape, at, step.after, axis, mesh)
        kind = None if known is None else str(known.kind)
        if kind != step.kind:
            wanted = "another way: there is no such step" if kind is None else kind
            raise BadPlan(
                f"{place}.kind: found {step.kind} from {at} to {step.after}, wanted "
                f"{wanted}"
            )
        at = step.after
    if at != boxing.target:
        raise BadPlan(
            f"{path}.lowering: its steps end in {at}, wanted {boxing.target}, its 'to'"
        )


def _check_arrivals(document: Document) -> None:
    """Check that one boxing serves whoever wants a tensor otherwise than made.

    Where it is made again, a second one serves those of the backward.
    """
    edges = [boxing for boxing in document.boxings if not boxing.enters]
    boxings = {(b.ref, b.target, is_again(b.key)): b for b in edges}
    keys = {boxing.key for boxing in document.boxings}
    if len(boxings) != len(edges) or len(keys) != len(document.boxings):
        raise BadPlan("boxings: found two of one key, or of one tensor to one target")
    again = set(document.recompute)
    served: dict[str, set[str]] = {}
    for use in find_uses(document):
        made = produced(document, use.ref)
        if made == use.wanted:
            continue
        boxing = boxings.get((use.ref, use.wanted, False))
        if boxing and boxing.key in again and use.phase is not Phase.FORWARD:
            boxing = boxings.get((use.ref, use.wanted, True))
        if boxing is None:
            raise BadPlan(
                f"boxings: found none of {use.ref} from {made} to {use.wanted}, as "
                f"{use.consumer} wants it"
            )
        served.setdefault(boxing.key, set()).add(use.consumer)
    for index, boxing in enumerate(document.boxings):
        wanted = served.get(boxing.key, set())
        if boxing.enters:
            continue
        if not wanted:
            raise BadPlan(f"boxings[{index}]: nobody wants {boxing.ref} so")
        _check_same_keys(f"boxings[{index}].consumers", set(boxing.consumers), wanted)


def _check_groups(document: Document) -> None:
    groups = {
        **{f"fusion[{i}]": group for i, group in enumerate(document.fusion)},
        **{f"joined[{i}]": group for i, group in enumerate(document.joined)},
        **{f"expanded.{key}": item.nodes for key, item in document.expanded.items()},
    }
    for path, keys in groups.items():
        if not keys:
            raise BadPlan(f"{path}: found none, wanted keys of nodes")
    lists = {
        **groups,
        **{f"reported[{i}]": item.nodes for i, item in enumerate(document.reported)},
        **{
            f"derived_rules[{i}]": item.nodes
            for i, item in enumerate(document.derived_rules)
        },
    }
    for path, keys in lists.items():
        for key in keys:
            if key not in document.nodes:
                raise BadPlan(f"{path}: found {key!r}, wanted the key of a node")
    for key in document.expanded:
        if key in document.nodes:
            raise BadPlan(f"expanded.{key}: a node has that key; want its parts alone")
