"""The plan as a networkx graph: nodes of the program, tensors flowing on its edges.

Graph nodes are node keys (placeholders included), and the outputs by their printed
form; edges are uses of tensors. A parameter that is updated in another placement than
it is stored in has a node of kind "optimizer" before its own. All attributes are text,
numbers and booleans, so that every exporter of networkx can write them.

Node attributes   kind ("op", a role's kind, or an output's), op, name, phase, stage,
                  module, source, type, placement (first result), seconds, flops
Edge attributes   operand (position at the user), index (of the result), type,
                  tensor_bytes (logical), placement (as made), wanted, boxing (its key
                  or ""), by (its steps), bytes and seconds of the boxing (0 without);
                  a boxing that serves several users stands on each of their edges
"""

from __future__ import annotations

from collections.abc import Iterator

import networkx as nx

from partita.compiler.ir.sbp import Placement
from partita.compiler.plan.document import Boxing, Document, Node, Output, Ref
from partita.compiler.plan.uses import (
    Use,
    boxings_by_use,
    find_uses,
    produced,
    type_of,
)

Attributes = dict[str, str | int | float]


def build_graph(document: Document) -> nx.MultiDiGraph[str]:
    """Return the graph described above, its nodes in the order of the program."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for key in document.order:
        graph.add_node(key, **_node_attributes(document.nodes[key]))
    for output in document.outputs:
        if output.value is not None:
            graph.add_node(str(output), **_output_attributes(document, output))
    for use, attributes in _edges(document):
        graph.add_edge(use.ref.key, use.consumer, **attributes)
    for boxing in document.boxings:
        if boxing.enters:
            own = _node_attributes(document.nodes[boxing.producer])
            held = {"kind": "optimizer", "placement": str(boxing.source)}
            graph.add_node(boxing.key, **{**own, **held})
            attributes = _edge_attributes(document, boxing.ref, boxing.target, boxing)
            graph.add_edge(boxing.key, boxing.producer, operand=0, **attributes)
    return graph


def _node_attributes(node: Node) -> Attributes:
    first = next(iter(node.signature.results), None)
    return {
        "kind": node.role.kind.value if node.role else "op",
        "op": node.op,
        "name": node.role.name if node.role else "",
        "phase": node.phase.value,
        "stage": node.stage,
        "module": node.module,
        "source": node.source,
        "type": ", ".join(str(type_) for type_ in node.types),
        "placement": "" if first is None else str(first),
        "seconds": node.seconds,
        "flops": node.flops,
    }


def _output_attributes(document: Document, output: Output) -> Attributes:
    assert output.value is not None
    made_by = document.nodes[output.value.key]
    return {
        "kind": output.kind.value,
        "op": "output",
        "name": output.name,
        "phase": made_by.phase.value,
        "stage": made_by.stage,
        "module": "",
        "source": "",
        "type": str(type_of(document, output.value)),
        "placement": str(output.placement),
        "seconds": 0.0,
        "flops": 0.0,
    }


def _edges(document: Document) -> Iterator[tuple[Use, Attributes]]:
    boxings = boxings_by_use(document)
    for use in find_uses(document):
        attributes = _edge_attributes(
            document, use.ref, use.wanted, boxings.get(use.asks)
        )
        yield use, {"operand": use.position, **attributes}


def _edge_attributes(
    document: Document, ref: Ref, wanted: Placement, boxing: Boxing | None
) -> Attributes:
    type_ = type_of(document, ref)
    made = produced(document, ref) if boxing is None else boxing.source
    return {
        "index": ref.index,
        "type": str(type_),
        "tensor_bytes": type_.num_bytes,
        "placement": str(made),
        "wanted": str(wanted),
        "boxing": boxing.key if boxing else "",
        "by": ", ".join(map(str, boxing.lowering)) if boxing else "",
        "bytes": boxing.bytes if boxing else 0,
        "seconds": boxing.seconds if boxing else 0.0,
    }
