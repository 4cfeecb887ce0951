from dataclasses import replace
from typing import Any

import pytest
from small_plan import DOWN, UP, replaced, small_plan

from partita.compiler.errors import BadPlan
from partita.compiler.plan.document import Ref
from partita.compiler.plan.plan import Plan

DATA = small_plan().to_dict()
NODES = list(DATA["nodes"])
MM = "nodes.up/mm/0"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ["nodes", "up/mm/0", "operands", 0],
            "input:y",
            f"{MM}.operands[0]: found 'input:y', wanted the key of a node",
        ),
        (
            ["nodes", "up/mm/0", "operands", 0],
            "input:x#1",
            f"{MM}.operands[0]: found 'input:x#1', but that node makes no such tensor",
        ),
        (
            ["nodes", "up/mm/0", "operands", 0],
            "relu/0",
            f"{MM}.operands[0]: order has 'relu/0' after its user",
        ),
        (
            ["nodes", "up/mm/0", "operands"],
            ["input:x"],
            f"{MM}.signature.operands: found 2 entries, wanted 1",
        ),
        (
            ["nodes", "up/mm/0", "signature", "results", 0],
            "(S(0), S(2))",
            f"{MM}.signature.results[0]: placement (S(0), S(2)): S(2) names dim 2, but "
            "shape [8, 10] has 2 dims",
        ),
        (
            ["nodes", "up/mm/0", "signature", "results", 0],
            "(S(0),)",
            f"{MM}.signature.results[0]: placement (S(0),) has 1 entries, mesh "
            "dp=2,tp=2 has 2 axes; give one entry per axis",
        ),
        (
            ["nodes", "up/mm/0", "signature", "results", 0],
            None,
            f"{MM}.signature.results[0]: found null, wanted a placement",
        ),
        (
            ["nodes", UP, "alternatives", 0, "signature", "results"],
            [],
            f"nodes.{UP}.alternatives[0].signature.results: found 0 entries, wanted 1",
        ),
        (
            ["nodes", UP, "alternatives", 0, "held"],
            {"gradient": "(B, B)", "optimizer": "(S(2), B)"},
            f"nodes.{UP}.alternatives[0].held.optimizer: placement (S(2), B): S(2) "
            "names dim 2, but shape [6, 10] has 2 dims",
        ),
        (
            ["nodes", "up/mm/0", "stage"],
            1,
            "nodes.up/mm/0.stage: found 1, wanted at most 0",
        ),
        (
            ["nodes", UP, "role", "name"],
            "out.weight",
            f"nodes.{UP}.role: there is no parameter 'out.weight'",
        ),
        (
            ["nodes", UP, "role"],
            None,
            f"nodes.{UP}.role: wanted for a placeholder, and only there",
        ),
        (
            ["parameters", "up.weight", "shape"],
            [10, 6],
            f"nodes.{UP}.types: found f32[6, 10], wanted f32[10, 6] of up.weight",
        ),
        (
            ["parameters", "up.weight", "placements", "storage"],
            "(B, B)",
            f"nodes.{UP}.signature.results[0]: found (B, S(1)), wanted (B, B), the "
            "placement of parameter up.weight",
        ),
        (
            ["parameters", "up.weight", "placements", "gradient"],
            "(B, S(1; 4|4))",
            "parameters.up.weight.placements.gradient: placement (B, S(1; 4|4)): the "
            "segments of S(1; 4|4) add up to 8, dim 1 of shape [6, 10] to 10",
        ),
        (
            ["parameters", "up.weight", "homes"],
            [1],
            "parameters.up.weight.homes: there",
        ),
        (
            ["parameters", "up.weight", "placements", "use"],
            "(B, B)",
            "parameters.up.weight.placements.use: found (B, B), wanted (B, S(1)), as "
            "the first who uses it takes it",
        ),
        (["mesh"], "dp=4,tp=2", "mesh: found dp=4,tp=2, wanted dp=2,tp=2, as in st"),
        (["schedule", "rank_of"], [], "schedule.rank_of: found [], wanted [0] for "),
        (
            ["microbatches"],
            2,
            "microbatches: found 2, but input:x is f32[8, 6], of the whole batch; want "
            "1, or a plan made for 2",
        ),
        (
            ["options", "pins"],
            {"up.*": "on tp", "vp.*": "on tp"},
            "options.pins: found 'vp.*': 'on tp', and no parameter, buffer, input, "
            "node or module of that name; want one that the plan has",
        ),
        (
            ["boxings", 0, "lowering", 0, "kind"],
            "reduce_scatter",
            "boxings[0].lowering[0].kind: found reduce_scatter from (S(0), P(sum)) to "
            "(S(0), B), wanted all_reduce",
        ),
        (
            ["outputs", 0, "placement"],
            "(B, P(sum))",
            "outputs[0].placement: found (B, P(sum)), wanted B on every axis, as it",
        ),
        (
            ["stages", 0, "ranks"],
            [0, 1, 2],
            "stages[0].ranks: found 3, wanted 4 for",
        ),
        (["stages", 0, "nodes"], NODES[1:], f"stages[0].nodes: lacks {NODES[0]!r}"),
        (["order"], NODES[1:], f"order: lacks {NODES[0]!r}"),
        (["order"], [NODES[0], *NODES], "order: found 14 keys, wanted 13 once each"),
        (
            ["outputs", 1, "value"],
            "max.dim/0#2",
            "outputs[1].value: found 'max.dim/0#2', but that node makes no such tensor",
        ),
        (
            ["outputs", 1, "value"],
            None,
            "outputs[1].placement: found (S(0), B), w",
        ),
        (
            ["outputs", 1, "placement"],
            "(B, B)",
            "boxings: found none of max.dim/0#1 from (S(0), B) to (B, B), as "
            "output:best wants it",
        ),
        (
            ["boxings", 0, "from"],
            "(B, B)",
            "boxings[0].from: found (B, B), wanted (S(0), P(sum)) of down/mm/0",
        ),
        (
            ["boxings", 0, "to"],
            "(B, B)",
            "boxings[0].lowering: its steps end in (S(0), B), wanted (B, B), its 'to'",
        ),
        (
            ["boxings", 0, "lowering", 0, "axis"],
            "pp",
            "boxings[0].lowering[0].axis: found 'pp', wanted one of dp, tp",
        ),
        (
            ["boxings", 0, "lowering", 0, "axis"],
            "dp",
            "boxings[0].lowering[0].to: found (S(0), B) after (S(0), P(sum)), wanted a "
            "change on dp alone",
        ),
        (
            ["boxings", 0, "consumers"],
            ["mean/0"],
            "boxings[0].consumers: lacks 'max.dim/0'",
        ),
        (
            ["boxings", 0, "consumers", 0],
            "relu/0",
            "boxings[0].consumers: lacks 'mean/0'",
        ),
        (
            ["boxings", 1],
            DATA["boxings"][0],
            "boxings: found two of one key, or of one tensor to one target",
        ),
        (["recompute"], ["x"], "recompute: found 'x', wanted the key of a node or"),
        (["fusion"], [["x"]], "fusion[0]: found 'x', wanted the key of a node"),
        (["fusion"], [[]], "fusion[0]: found none, wanted keys of nodes"),
        (
            ["reported", 0, "nodes"],
            ["x"],
            "reported[0]: found 'x', wanted the k",
        ),
        (
            ["inputs", "leaves", 0, "name"],
            "scale",
            "inputs.leaves: found a name twice, wanted each once",
        ),
        (
            ["inputs", "leaves", 0, "name"],
            "y",
            "nodes.input:x.role: there is no inpu",
        ),
    ],
)
def test_what_does_not_hold_together_is_named(
    path: list[Any], value: Any, message: str
) -> None:
    data = replaced(DATA, path, value)
    if path[0] == "boxings" and path[-1] == "axis":
        del data["boxings"][0]["axis"]
    with pytest.raises(BadPlan) as caught:
        Plan.from_dict(data)
    assert str(caught.value).startswith(f"plan: {message}")


def test_boxing_that_nobody_wants_is_refused(plan: Plan) -> None:
    boxing = replace(
        plan.boxings[2],
        key="k",
        target=plan.boxings[2].source,
        lowering=(),
        consumers=(),
    )
    with pytest.raises(
        BadPlan, match=r"boxings\[5\]: nobody wants mean/0~grad/expand/0"
    ):
        replace(plan, boxings=(*plan.boxings, boxing)).validate()


def test_operands_must_match_the_signature(plan: Plan) -> None:
    node = plan.nodes["max.dim/0"]
    away = replace(plan, nodes={**plan.nodes, "max.dim/0": replace(node, operands=())})
    with pytest.raises(BadPlan, match=r"max.dim/0.signature.operands: found 1"):
        away.validate()
    other = replace(node, operands=(Ref("relu/0"),))
    with pytest.raises(BadPlan, match="found none of relu/0"):
        replace(plan, nodes={**plan.nodes, "max.dim/0": other}).validate()


def test_plan_built_in_python_is_checked_the_same(plan: Plan) -> None:
    plan.validate()
    nodes = {key: node for key, node in plan.nodes.items() if key != DOWN}
    with pytest.raises(BadPlan, match=r"stages.0..nodes: has no such node"):
        replace(plan, nodes=nodes).validate()
