from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from tests.compiler.export.hostile import NAME

from partita.compiler.export.dot import quoted, write_dot
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.units import printable

# The grammar of what is written, of graphviz.org/doc/info/lang.html as far as used.
STRING = r'"(?:[^"\\]|\\.)*"'
ATTRIBUTES = rf"(?: \[\w+=(?:{STRING}|\w+)(?: \w+=(?:{STRING}|\w+))*\])?"
NODE = re.compile(rf" *({STRING}){ATTRIBUTES};")
EDGE = re.compile(rf" *({STRING}) -> ({STRING}){ATTRIBUTES};")
OPENS = re.compile(rf" *(?:digraph|subgraph) {STRING} \{{")
OTHERS = re.compile(rf" *(?:\}}|label={STRING};|rankdir=TB; node \[[\w= ]*\];)")


def parsed(text: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return nodes and edges as they are quoted; fail where the text is no graph."""
    nodes: list[str] = []
    edges: list[tuple[str, str]] = []
    depth = 0
    for line in text.splitlines():
        if OPENS.fullmatch(line):
            depth += 1
        elif match := EDGE.fullmatch(line):
            edges.append((match[1], match[2]))
        elif match := NODE.fullmatch(line):
            nodes.append(match[1])
        else:
            assert OTHERS.fullmatch(line), line
            depth -= line.strip() == "}"
    assert depth == 0
    return nodes, edges


def test_nodes_edges_and_clusters_are_those_of_the_plan(small: Plan) -> None:
    text, wanted = write_dot(small), small.graph()
    nodes, edges = parsed(text)
    assert sorted(nodes) == sorted(quoted(key) for key in wanted)
    assert sorted(edges) == sorted((quoted(a), quoted(b)) for a, b in wanted.edges())
    assert '  subgraph "cluster_up" {\n    label="up";\n    "up/mm/0" [' in text


def test_an_edge_with_a_boxing_says_what_is_done(small: Plan) -> None:
    lines = write_dot(small).splitlines()
    (line,) = [x for x in lines if x.startswith('  "down/mm/0" -> "mean/0"')]
    assert '"all_reduce tp: (S(0), P(sum)) -> (S(0), B), 64 B"' in line
    (line,) = [x for x in lines if x.startswith('  "relu/0" -> "down/mm/0" ')] or [""]
    assert line == ""


def test_hostile_names_stay_in_their_quotes(hostile: Plan, small: Plan) -> None:
    text = write_dot(hostile)
    assert text.count("\n") == write_dot(small).count("\n")
    assert "\x1b" not in text
    nodes, _ = parsed(text)
    assert sorted(nodes) == sorted(quoted(key) for key in hostile.graph())
    assert quoted(f"{NAME}/mm/0") in nodes
    assert printable(NAME) != NAME


@pytest.mark.slow
def test_graphviz_draws_it(small: Plan, hostile: Plan, staged: Plan) -> None:
    assert shutil.which("dot"), "no Graphviz: install your system's package graphviz"
    for plan in (small, hostile, staged):
        done = subprocess.run(
            ["dot", "-Tplain"], input=write_dot(plan), capture_output=True, text=True
        )
        assert done.stderr == ""
        drawn = [line for line in done.stdout.splitlines() if line.startswith("node ")]
        assert len(drawn) == plan.graph().number_of_nodes()
