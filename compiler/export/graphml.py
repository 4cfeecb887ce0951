"""A plan as GraphML, which yEd, Gephi and networkx read.

Nodes, edges and their attributes are those of ``plan.graph()`` (plan/graph.py).
"""

from __future__ import annotations

from typing import Any

import networkx as nx

from partita.compiler.export.exporter import Exporter
from partita.compiler.plan.document import Document
from partita.compiler.plan.graph import Attributes, build_graph
from partita.compiler.plan.units import printable


def write_graphml(document: Document) -> str:
    """Return the plan's graph as GraphML."""
    made = build_graph(document)
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    graph.add_nodes_from((printable(k), _shown(a)) for k, a in made.nodes(data=True))
    graph.add_edges_from(
        (printable(source), printable(target), _shown(attributes))
        for source, target, attributes in made.edges(data=True)
    )
    lines: Any = nx.generate_graphml(graph, prettyprint=True)
    return "\n".join([*lines, ""])


def _shown(attributes: Attributes) -> Attributes:
    """Return the attributes as XML can hold them: it has no control characters."""
    return {
        name: printable(value) if isinstance(value, str) else value
        for name, value in attributes.items()
    }


EXPORTER = Exporter(
    "graphml", "the placement graph, for yEd and networkx", ".graphml", write_graphml
)
