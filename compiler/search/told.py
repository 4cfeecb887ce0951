"""A draft that is told what its nodes could have been: what no comparison needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.document import Node
from partita.compiler.plan.plan import Plan
from partita.compiler.search.chosen import told_of
from partita.compiler.search.pose import Posed


def with_alternatives(
    draft: Plan, posed: Posed, choices: Sequence[int], most: int
) -> Plan:
    """Return a draft with what its nodes are told of their other choices.

    Args:
        draft: as ``decide.draft`` makes it.
        posed: the problem that was solved.
        choices: a choice per node of it, those that the draft was made of.
        most: of its other choices each node is told of.
    """
    told = told_of(posed, choices, most)
    nodes, expanded = dict(draft.nodes), dict(draft.expanded)
    for key, others in told.items():
        if key in expanded:
            expanded[key] = replace(expanded[key], alternatives=others)
        elif others:
            nodes[key] = _told(nodes[key], others)
    return replace(draft, nodes=nodes, expanded=expanded)


def _told(node: Node, others: tuple[Alternative, ...]) -> Node:
    """Return a node with its alternatives; ``replace`` would be slow for all."""
    return Node(
        node.op,
        node.types,
        node.signature,
        node.operands,
        node.constants,
        node.stage,
        node.phase,
        node.module,
        node.source,
        node.role,
        node.seconds,
        node.flops,
        node.ways,
        others,
    )
