"""The form is that of graph_builder.py of ai-edge-model-explorer 0.1.34."""

from __future__ import annotations

import json
from typing import Any

import pytest

from partita.compiler.export.model_explorer import write_model_explorer
from partita.compiler.plan.plan import Plan

# Fields of the records there: those that must be given, those that may be.
NODE = {"id", "label"}, {
    "namespace", "attrs", "incomingEdges", "outputsMetadata", "style",
}  # fmt: skip
EDGE = {"sourceNodeId"}, {"sourceNodeOutputId", "targetNodeInputId"}
OVERLAY = {"name", "edgeColor"}, {"edges", "edgeWidth"}


def fits(record: dict[str, Any], fields: tuple[set[str], set[str]]) -> bool:
    needed, allowed = fields
    return needed <= set(record) <= needed | allowed


@pytest.mark.parametrize("name", ["small", "hostile", "staged"])
def test_it_has_the_form_of_a_graph_collection(
    name: str, request: pytest.FixtureRequest
) -> None:
    plan: Plan = request.getfixturevalue(name)
    made = json.loads(write_model_explorer(plan))
    assert set(made) == {"label", "graphs"}  # what the page's loader asks for
    (graph,) = made["graphs"]
    ids = [node["id"] for node in graph["nodes"]]
    assert len(set(ids)) == len(ids)
    for node in graph["nodes"]:
        assert fits(node, NODE)
        for edge in node["incomingEdges"]:
            assert fits(edge, EDGE)
            assert edge["sourceNodeId"] in ids
        pairs = [
            *node["attrs"],
            *(p for o in node["outputsMetadata"] for p in o["attrs"]),
        ]
        assert all(isinstance(pair["value"], str) for pair in pairs)
    (data,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    assert data["type"] == "edge_overlays"
    for overlay in data["overlays"]:
        assert fits(overlay, OVERLAY)
        assert overlay["edges"]
        assert all(
            {e["sourceNodeId"], e["targetNodeId"]} <= set(ids) for e in overlay["edges"]
        )


def test_overlays_are_the_plans_collectives(small: Plan) -> None:
    (graph,) = json.loads(write_model_explorer(small))["graphs"]
    (data,) = graph["tasksData"]["edgeOverlaysDataListLeftPane"]
    edges = {overlay["name"]: len(overlay["edges"]) for overlay in data["overlays"]}
    assert edges == {"all_reduce dp": 3, "all_reduce tp": 2, "slice dp": 2}
    (mean,) = [n for n in graph["nodes"] if n["id"] == "mean/0"]
    (result,) = mean["outputsMetadata"]
    assert {"key": "placement", "value": "(P(sum), B)"} in result["attrs"]
