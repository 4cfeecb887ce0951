"""Plans by hand: what the passes read of a plan, and fillers for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.compiler.ir.small_programs import signature

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Program, info, op_name
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.plan.document import (
    Boxing,
    LoweringStep,
    ModelId,
    Node,
    Output,
    PlanOptions,
    Predicted,
    boxing_key,
)
from partita.compiler.plan.input_spec import InputSpec
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.search_result import SearchResult


def plan_for(
    program: Program,
    mesh: Mesh,
    signatures: Mapping[str, str | Signature],
    outputs: Mapping[str, str] | None = None,
    boxings: Sequence[tuple[str, str, str]] = (),
) -> Plan:
    """Return a plan; what it does not mention it lacks.

    Args:
        program: whose nodes the plan is about.
        mesh: of the plan.
        signatures: by node key, or as ``small_programs.signature`` reads them.
        outputs: by ``kind:name``, the placement in which it leaves.
        boxings: producer, target and kind of the one step, which is on axis 0.
    """
    nodes = {
        info(node).key: Node(
            op_name(node), info(node).types, _read(signatures[info(node).key])
        )
        for node in program.nodes()
        if info(node).key in signatures
    }
    leaving = [
        Output(role.kind, role.name, None, Placement.parse(outputs[key]))
        for role in program.outputs
        if outputs and (key := f"{role.kind}:{role.name}") in outputs
    ]
    return Plan(
        partita="test",
        model=ModelId("Small", "0"),
        mesh=mesh,
        stages=(),
        hardware={},
        inputs=InputSpec((), None),
        options=PlanOptions(),
        parameters={},
        buffers={},
        nodes=nodes,
        boxings=tuple(_boxing(nodes, mesh, *entry) for entry in boxings),
        order=tuple(nodes),
        outputs=tuple(leaving),
        collectives=(),
        predicted=Predicted(0.0, 0),
        search=SearchResult("hand", "drawn", None, 0.0),
    )


def _read(found: str | Signature) -> Signature:
    return signature(found) if isinstance(found, str) else found


def _boxing(
    nodes: Mapping[str, Node], mesh: Mesh, producer: str, target: str, kind: str
) -> Boxing:
    key, _, index = producer.partition("#")
    result = int(index or 0)
    source, end = nodes[key].signature.results[result], Placement.parse(target)
    assert source is not None
    return Boxing(
        key=boxing_key(key, result, end),
        producer=key,
        source=source,
        target=end,
        lowering=(LoweringStep(kind, mesh.names[0], end),),
        consumers=(),
        index=result,
    )
