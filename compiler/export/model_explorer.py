"""A plan as a graph of Google's Model Explorer, its collectives as edge overlays.

The form is that of ``graph_builder.py`` of its package. A node's namespace is its
module, its color says how many axes split it, each result says its placement. One
overlay for each kind of step and axis marks the edges on which it is done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from partita.compiler.export.exporter import Exporter
from partita.compiler.ir.sbp import Broadcast, Placement
from partita.compiler.plan.document import Document, Output
from partita.compiler.plan.uses import Use, boxings_by_use, find_uses, type_of

_COLORS = ("#ffffff", "#dbeafe", "#93c5fd", "#60a5fa")
"""Of a node, by how many axes do not simply repeat its result."""

_OVERLAY_COLORS = ("#ea4335", "#fbbc04", "#34a853", "#4285f4", "#9334e6", "#f439a0")


def write_model_explorer(document: Document) -> str:
    """Return the plan's graph as Model Explorer's JSON."""
    uses = tuple(find_uses(document))
    graph = {
        "id": f"{document.model.class_name} on mesh {document.mesh}",
        "nodes": [*_nodes(document, uses), *_outputs(document, uses)],
        "tasksData": {
            "edgeOverlaysDataListLeftPane": [
                {
                    "type": "edge_overlays",
                    "name": "collectives",
                    "overlays": _overlays(document, uses),
                }
            ],
            "edgeOverlaysDataListRightPane": [],
        },
    }
    made = {"label": document.model.class_name, "graphs": [graph]}
    return json.dumps(made, indent=1) + "\n"


def _nodes(document: Document, uses: Sequence[Use]) -> Iterator[dict[str, Any]]:
    entering = _incoming(uses)
    for key in document.order:
        node = document.nodes[key]
        results = node.signature.results
        attrs = {
            "phase": str(node.phase),
            "stage": str(node.stage),
            "source": node.source,
            "seconds": f"{node.seconds:.3e}",
            "flops": f"{node.flops:.3e}",
            "arguments": ", ".join(node.constants),
        }
        yield {
            "id": key,
            "label": node.op if node.role is None else node.role.name,
            "namespace": node.module.replace(".", "/"),
            "attrs": _pairs({name: text for name, text in attrs.items() if text}),
            "incomingEdges": entering.get(key, []),
            "outputsMetadata": [
                {
                    "id": str(index),
                    "attrs": _pairs({"shape": str(type_), "placement": str(placement)}),
                }
                for index, (type_, placement) in enumerate(
                    zip(node.types, results, strict=True)
                )
            ],
            "style": {"backgroundColor": _color(results)},
        }


def _outputs(document: Document, uses: Sequence[Use]) -> Iterator[dict[str, Any]]:
    entering = _incoming(uses)
    for output in document.outputs:
        if output.value is not None:
            yield {
                "id": str(output),
                "label": str(output),
                "namespace": "",
                "attrs": _pairs(_of_output(document, output)),
                "incomingEdges": entering.get(str(output), []),
                "outputsMetadata": [],
                "style": {"backgroundColor": _color((output.placement,))},
            }


def _of_output(document: Document, output: Output) -> dict[str, str]:
    assert output.value is not None
    shape = str(type_of(document, output.value))
    return {"shape": shape, "placement": str(output.placement)}


def _pairs(attributes: dict[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in attributes.items()]


def _incoming(uses: Sequence[Use]) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for use in uses:
        found.setdefault(use.consumer, []).append(
            {
                "sourceNodeId": use.ref.key,
                "sourceNodeOutputId": str(use.ref.index),
                "targetNodeInputId": str(use.position),
            }
        )
    return found


def _color(results: Sequence[Placement | None]) -> str:
    shardings = [p.shardings for p in results if p is not None]
    most = max(
        (sum(not isinstance(s, Broadcast) for s in each) for each in shardings),
        default=0,
    )
    return _COLORS[min(most, len(_COLORS) - 1)]


def _overlays(document: Document, uses: Sequence[Use]) -> list[dict[str, Any]]:
    boxings = boxings_by_use(document)
    edges: dict[str, list[dict[str, str]]] = {}
    for use in uses:
        boxing = boxings.get(use.asks)
        for step in boxing.lowering if boxing is not None else ():
            assert boxing is not None
            edge = {
                "sourceNodeId": use.ref.key,
                "targetNodeId": use.consumer,
                "label": f"{boxing.source} -> {boxing.target}",
            }
            edges.setdefault(str(step), []).append(edge)
    return [
        {
            "name": name,
            "edgeColor": _OVERLAY_COLORS[number % len(_OVERLAY_COLORS)],
            "edges": edges[name],
        }
        for number, name in enumerate(sorted(edges))
    ]


EXPORTER = Exporter(
    "model-explorer",
    "the placement graph with overlays, for Google's Model Explorer",
    ".json",
    write_model_explorer,
)
