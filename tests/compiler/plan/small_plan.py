"""A small plan written by hand: two layers, column then row parallel, on dp, tp.

Forward: ``z = relu(x @ up) @ down``; the loss is the mean of z, the other output the
position of the largest entry of each row. two_layers.json beside this is its document.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from partita.compiler.hardware.profile import CollectiveKind
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import InputKind, OutputKind, Phase
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.document import (
    Boxing,
    CollectiveTotal,
    LoweringStep,
    ModelId,
    Node,
    Output,
    Parameter,
    ParameterPlacements,
    PlanOptions,
    Predicted,
    Ref,
    Role,
)
from partita.compiler.plan.input_spec import InputLeaf, InputSpec
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.reported import Reported
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.plan.stage_records import Stage

DOCUMENT = Path(__file__).with_name("two_layers.json")
MESH = Mesh(dp=2, tp=2)
LEAF: dict[str, object] = {"type": None, "context": None, "children_spec": []}

at = Placement.parse
UP, DOWN = "parameter:up.weight", "parameter:down.weight"
COST = {"alpha_s": 4e-6, "bytes_per_s": 1e9}
HARDWARE: dict[str, object] = {
    "name": "by hand",
    "source": "made up for tests",
    "device": {
        "kind": "cpu",
        "flops_per_s": {"f32": 1e9},
        "memory_bytes_per_s": 1e9,
        "memory_bytes": 1 << 30,
        "launch_s": 2e-6,
    },
    "links": [
        {
            "name": "loopback",
            "ranks": None,
            "costs": {kind.value: COST for kind in CollectiveKind},
        }
    ],
    "axes": {},
}
SCALE = "loss-scale:loss_scale"


def signature(operands: str, results: str) -> Signature:
    """Read ``"S(0), B | B, S(1)"``: placements without brackets, parted by bars."""
    left, right = (
        tuple(at(f"({part})") for part in side.split("|") if part.strip())
        for side in (operands, results)
    )
    return Signature(left, right)


def enters(kind: InputKind, name: str, type_: str, placement: str) -> Node:
    return Node(
        op="placeholder",
        types=(TensorType.parse(type_),),
        signature=signature("", placement),
        role=Role(kind, name),
    )


def call(
    op: str, operands: str, types: str, left: str, right: str, phase: Phase, module: str
) -> Node:
    return Node(
        op=f"aten.{op}",
        operands=tuple(Ref.parse(text) for text in operands.split()),
        types=tuple(TensorType.parse(text.strip()) for text in types.split(";")),
        signature=signature(left, right),
        phase=phase,
        module=module,
        source="model.py:7",
        seconds=2e-6,
        flops=960.0,
        ways=4,
    )


def nodes() -> dict[str, Node]:
    forward, to_input, to_weight = list(Phase)[:3]
    up = enters(InputKind.PARAMETER, "up.weight", "f32[6, 10]", "B, S(1)")
    others = (
        Alternative(signature("", "B, B"), 3e-6, -1e-6, 64, 120),
        Alternative(signature("", "S(0), B"), 8e-6),
    )
    up = Node(up.op, up.types, up.signature, role=up.role, alternatives=others)
    return {
        UP: up,
        DOWN: enters(InputKind.PARAMETER, "down.weight", "f32[10, 4]", "B, S(0)"),
        "input:x": enters(InputKind.INPUT, "x", "f32[8, 6]", "S(0), B"),
        SCALE: enters(InputKind.LOSS_SCALE, "loss_scale", "f32[]", "B, B"),
        "up/mm/0": call(
            "mm.default", f"input:x {UP}", "f32[8, 10]",
            "S(0), B | B, S(1)", "S(0), S(1)", forward, "up",
        ),
        "relu/0": call(
            "relu.default", "up/mm/0", "f32[8, 10]",
            "S(0), S(1)", "S(0), S(1)", forward, "",
        ),
        "down/mm/0": call(
            "mm.default", f"relu/0 {DOWN}", "f32[8, 4]",
            "S(0), S(1) | B, S(0)", "S(0), P(sum)", forward, "down",
        ),
        "mean/0": call(
            "mean.default", "down/mm/0", "f32[]", "S(0), B", "P(sum), B", forward, ""
        ),
        "max.dim/0": call(
            "max.dim", "down/mm/0", "f32[8]; i64[8]",
            "S(0), B", "S(0), B | S(0), B", forward, "",
        ),
        "mean/0~grad/expand/0": call(
            "expand.default", SCALE, "f32[8, 4]",
            "B, B", "B, B", to_input, "",
        ),
        "down/mm/0~grad/mm/0": call(
            "mm.default", "relu/0 mean/0~grad/expand/0", "f32[10, 4]",
            "S(0), S(1) | S(0), B", "P(sum), S(0)", to_weight, "down",
        ),
        "down/mm/0~grad/mm/1": call(
            "mm.default", f"mean/0~grad/expand/0 {DOWN}", "f32[8, 10]",
            "S(0), B | B, S(0)", "S(0), S(1)", to_input, "down",
        ),
        "up/mm/0~grad/mm/0": call(
            "mm.default", "input:x down/mm/0~grad/mm/1", "f32[6, 10]",
            "S(0), B | S(0), S(1)", "P(sum), S(1)", to_weight, "up",
        ),
    }  # fmt: skip


def boxing(
    producer: str, source: str, step: str, target: str, consumers: tuple[str, ...]
) -> Boxing:
    kind, axis = step.split()
    sizes = (0, 0) if kind == "slice" else (64, 64)
    end = at(f"({target})")
    return Boxing(
        key=f"{producer} -> ({target})",
        producer=producer,
        source=at(f"({source})"),
        target=end,
        lowering=(LoweringStep(kind, axis, end, *sizes, 4e-6),),
        consumers=consumers,
        why=f"{consumers[0]} wants it so",
    )


def boxings() -> tuple[Boxing, ...]:
    to_down = ("down/mm/0~grad/mm/0", "down/mm/0~grad/mm/1")
    of_z = ("mean/0", "max.dim/0")
    down, up = "gradient:down.weight", "gradient:up.weight"
    return (
        boxing("down/mm/0", "S(0), P", "all_reduce tp", "S(0), B", of_z),
        boxing("mean/0", "P, B", "all_reduce dp", "B, B", ("loss:loss",)),
        boxing("mean/0~grad/expand/0", "B, B", "slice dp", "S(0), B", to_down),
        boxing("down/mm/0~grad/mm/0", "P, S(0)", "all_reduce dp", "B, S(0)", (down,)),
        boxing("up/mm/0~grad/mm/0", "P, S(1)", "all_reduce dp", "B, S(1)", (up,)),
    )


def parameter(shape: tuple[int, ...], placement: str) -> Parameter:
    return Parameter(shape, torch.float32, ParameterPlacements(*[at(placement)] * 4))


def outputs() -> tuple[Output, ...]:
    row, column = at("(B, S(0))"), at("(B, S(1))")
    up, down = Ref("up/mm/0~grad/mm/0"), Ref("down/mm/0~grad/mm/0")
    return (
        Output(OutputKind.LOSS, "loss", Ref("mean/0"), at("(B, B)")),
        Output(OutputKind.OUTPUT, "best", Ref("max.dim/0", 1), at("(S(0), B)")),
        Output(OutputKind.GRADIENT, "up.weight", up, column),
        Output(OutputKind.GRADIENT, "down.weight", down, row),
    )


def small_plan() -> Plan:
    tuple_ = {"type": "builtins.tuple", "context": "null"}
    args = {**tuple_, "children_spec": [LEAF]}
    kwargs = {"type": "builtins.dict", "context": '["scale"]', "children_spec": [LEAF]}
    made = nodes()
    return Plan(
        partita="0.1.0",
        model=ModelId("model.TwoLayers", "5f0c"),
        mesh=MESH,
        stages=(Stage(MESH, (0, 1, 2, 3), tuple(made)),),
        hardware=HARDWARE,
        inputs=InputSpec(
            (
                InputLeaf("x", tensor=TensorType.parse("f32[8, 6]")),
                InputLeaf("scale", constant=1.5),
            ),
            [1, {**tuple_, "children_spec": [args, kwargs]}],
        ),
        options=PlanOptions(),
        parameters={
            "up.weight": parameter((6, 10), "(B, S(1))"),
            "down.weight": parameter((10, 4), "(B, S(0))"),
        },
        buffers={},
        nodes=made,
        boxings=boxings(),
        order=tuple(made),
        outputs=outputs(),
        collectives=(
            CollectiveTotal("all_reduce", "dp", 3, 192),
            CollectiveTotal("all_reduce", "tp", 1, 64),
        ),
        predicted=Predicted(
            36e-6,
            2048,
            {"compute": 16e-6, "communication": 20e-6},
            {"parameters": 512, "activations": 1536},
        ),
        search=SearchResult("highs", "optimal", 0.0, 0.25),
        reported=(Reported("aten.max.dim", "no rule: replicated", ("max.dim/0",)),),
    )


def replaced(data: Any, path: list[Any], value: Any) -> Any:
    """Return a copy of a document with one value changed."""
    changed = copy.deepcopy(data)
    at = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return changed
