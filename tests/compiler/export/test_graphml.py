from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx as nx
import pytest

from partita.compiler.export.graphml import write_graphml
from partita.compiler.plan.plan import Plan
from partita.compiler.plan.units import printable


@pytest.mark.parametrize("name", ["small", "hostile", "staged"])
def test_networkx_reads_the_same_graph(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    plan: Plan = request.getfixturevalue(name)
    path = tmp_path / "plan.graphml"
    path.write_text(write_graphml(plan), "utf-8")
    read: Any = nx.read_graphml(path, force_multigraph=True)
    wanted = plan.graph()
    shown = {printable(key): key for key in wanted}
    assert set(read) == set(shown)
    for key, attributes in read.nodes(data=True):
        same = wanted.nodes[shown[key]]
        assert attributes == {
            k: printable(v) if isinstance(v, str) else v for k, v in same.items()
        }
    assert read.number_of_edges() == wanted.number_of_edges()


def test_it_is_xml_that_names_every_attribute_once(small: Plan) -> None:
    root = ElementTree.fromstring(write_graphml(small))
    names = [key.get("attr.name") for key in root if key.tag.endswith("}key")]
    assert {"placement", "seconds", "boxing", "wanted"} <= set(names)
