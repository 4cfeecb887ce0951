"""The plan's signatures are written onto the nodes, if a rule allows them."""

from __future__ import annotations

import pytest
import torch
from tests.compiler.ir.small_programs import Builder, show
from tests.passes.small_documents import plan_for

from partita.compiler.errors import BadPlan
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind, Program, info
from partita.compiler.plan.plan import Plan
from partita.compiler.rules.table import default_rules
from partita.passes.annotate_placements import AnnotatePlacements
from partita.passes.base import run_sequence

aten = torch.ops.aten
MESH = Mesh(tp=2)

SIGNATURES = {
    "parameter:w": "-> S(1)",
    "input:x": "-> B",
    "mm/0": "B, S(1) -> S(1)",
    "relu/0": "S(1) -> S(1)",
}


def layer() -> Program:
    b = Builder()
    w = b.enter("w", "f32[4, 6]", kind=InputKind.PARAMETER)
    x = b.enter("x", "f32[8, 4]")
    mm = b.call("mm/0", aten.mm.default, (x, w), "f32[8, 6]")
    b.leave(
        OutputKind.OUTPUT, "y", b.call("relu/0", aten.relu.default, (mm,), "f32[8, 6]")
    )
    return b.program()


def plan(**changed: str) -> Plan:
    renamed = {key.replace("_", "/"): text for key, text in changed.items()}
    return plan_for(layer(), MESH, SIGNATURES | renamed)


def annotate(plan: Plan) -> Program:
    return run_sequence(layer(), [AnnotatePlacements(plan, default_rules)])


def test_before_and_after() -> None:
    assert show(layer()) == (
        "mm/0: f32[8, 6] = aten.mm.default(input:x, parameter:w)\n"
        "relu/0: f32[8, 6] = aten.relu.default(mm/0)\n"
        "output:y = relu/0"
    )
    after = annotate(plan())
    assert show(after) == (
        "mm/0: f32[8, 6] (S(1),) = aten.mm.default(input:x, parameter:w)\n"
        "relu/0: f32[8, 6] (S(1),) = aten.relu.default(mm/0)\n"
        "output:y = relu/0"
    )
    assert after.mesh == MESH
    assert [str(info(node).signature) for node, _ in after.placeholders()] == [
        " -> (S(1),)",
        " -> (B,)",
    ]


def test_the_given_program_stays_as_it_was() -> None:
    program = layer()
    AnnotatePlacements(plan(), default_rules).run(program)
    assert program.mesh is None
    assert all(info(node).signature is None for node in program.nodes())


def test_plan_that_lacks_a_node_is_refused() -> None:
    few = {key: text for key, text in SIGNATURES.items() if key != "relu/0"}
    with pytest.raises(BadPlan) as caught:
        annotate(plan_for(layer(), MESH, few))
    assert str(caught.value) == "nodes: the plan has no 'relu/0'"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"relu_0": "P -> P"},
            "nodes.relu/0.signature: no rule of aten.relu.default allows (P(sum),) -> "
            "(P(sum),)",
        ),
        (
            {"mm_0": "S(1), S(0) -> B"},
            "nodes.mm/0.signature: no rule of aten.mm.default allows (S(1),), (S(0),) "
            "-> (B,)",
        ),
        (
            {"relu_0": "S(0) -> S(1)"},
            "nodes.relu/0.signature: no rule of aten.relu.default allows (S(0),) -> "
            "(S(1),)",
        ),
    ],
)
def test_signature_that_no_rule_allows_is_refused(
    changed: dict[str, str], message: str
) -> None:
    with pytest.raises(BadPlan) as caught:
        annotate(plan(**changed))
    assert str(caught.value) == message
