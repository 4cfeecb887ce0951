"""Nodes are told their alternatives, and stay what they were."""

from __future__ import annotations

from dataclasses import fields, replace

from tests.compiler.search.hand_made import machine
from tests.models.captured import captured

from partita.compiler.ir.mesh import Mesh
from partita.compiler.plan.document import Node
from partita.compiler.plan.search_result import SearchResult
from partita.compiler.search.decide import Found
from partita.compiler.search.solver import solve
from partita.compiler.search.told import with_alternatives
from partita.one_mesh.planner import Planner
from partita.options import Options


def test_all_else_of_a_node_is_kept() -> None:
    _, known = captured("gpt2")
    made = Planner(known, "gpt2", Mesh(dp=2, tp=2), Options(hardware=machine()))
    choices = solve(made.posed.problem, 30.0).choices
    draft = made.draft(Found(choices, SearchResult("", "", None, 0.0)))
    # No field has its default: one that is left out shows.
    odd = {field.name: object() for field in fields(Node) if field.name != "operands"}
    nodes = {key: replace(node, **odd) for key, node in draft.nodes.items()}
    nodes = {key: replace(node, alternatives=()) for key, node in nodes.items()}
    told = with_alternatives(replace(draft, nodes=nodes), made.posed, choices, most=2)
    changed = [key for key, node in told.nodes.items() if node.alternatives]
    assert changed
    assert all(len(told.nodes[key].alternatives) <= 2 for key in changed)
    for key, node in told.nodes.items():
        assert replace(node, alternatives=()) == nodes[key]
