"""A plan as a Graphviz graph: ``dot -Tsvg plan.dot``.

Modules are clusters, one in the other; a node says its op, its type and where it lives;
an edge on which a boxing stands is bold and says what is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from partita.compiler.export.exporter import Exporter
from partita.compiler.plan.document import Document
from partita.compiler.plan.graph import Attributes, build_graph
from partita.compiler.plan.units import format_bytes, printable

_COLORS = {"op": "white", "parameter": "lightgoldenrod", "buffer": "lightgoldenrod"}
_OTHERS = "lightgray"


def write_dot(document: Document) -> str:
    """Return the plan's graph in the DOT language."""
    graph = build_graph(document)
    root = _Cluster("")
    for key, attributes in graph.nodes(data=True):
        root.below(str(attributes["module"])).nodes.append((key, attributes))
    lines = [
        f"digraph {quoted(document.model.class_name)} {{",
        "  rankdir=TB; node [shape=box style=filled fontname=Helvetica];",
        f"  label={quoted(f'{document.model.class_name} on mesh {document.mesh}')};",
        *root.lines(1),
    ]
    for source, target, attributes in graph.edges(data=True):
        lines.append(f"  {quoted(source)} -> {quoted(target)}{_edge(attributes)};")
    return "\n".join([*lines, "}", ""])


def quoted(text: str) -> str:
    r"""Return a quoted string of the DOT language that stands for ``text``.

    Only a quote ends one, and a backslash begins an escape that labels know.

    >>> print(quoted('a"; b [shape=x]; "'))
    "a\"; b [shape=x]; \""
    >>> print(quoted(chr(92) + "N"))
    "\\N"
    """
    escaped = printable(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


@dataclass
class _Cluster:
    """The nodes of a module, and the modules below it by their names."""

    name: str
    nodes: list[tuple[str, Attributes]] = field(
        default_factory=list[tuple[str, Attributes]]
    )
    parts: dict[str, _Cluster] = field(default_factory=dict[str, "_Cluster"])

    def below(self, module: str) -> _Cluster:
        """Return the cluster of the module of that path."""
        found = self
        for part in filter(None, module.split(".")):
            name = f"{found.name}.{part}".removeprefix(".")
            found = found.parts.setdefault(part, _Cluster(name))
        return found

    def lines(self, depth: int) -> Iterator[str]:
        """Yield what stands for the cluster, a line for each node."""
        indent = "  " * depth
        for key, attributes in self.nodes:
            yield f"{indent}{quoted(key)}{_node(attributes)};"
        for part in self.parts.values():
            yield f"{indent}subgraph {quoted(f'cluster_{part.name}')} {{"
            yield f"{indent}  label={quoted(part.name)};"
            yield from part.lines(depth + 1)
            yield f"{indent}}}"


def _node(attributes: Attributes) -> str:
    kind = str(attributes["kind"])
    title = attributes["op"] if kind == "op" else f"{kind} {attributes['name']}"
    lines = (str(title), f"{attributes['type']} {attributes['placement']}")
    label = "\\n".join(quoted(line)[1:-1] for line in lines)
    color = _COLORS.get(kind, _OTHERS)
    return f' [label="{label}" fillcolor={color}]'


def _edge(attributes: Attributes) -> str:
    if not attributes["boxing"]:
        return ""
    size = format_bytes(int(attributes["bytes"]))
    change = f"{attributes['placement']} -> {attributes['wanted']}"
    label = quoted(f"{attributes['by']}: {change}, {size}")
    return f" [label={label} color=red penwidth=2]"


EXPORTER = Exporter("dot", "the placement graph, for Graphviz", ".dot", write_dot)
