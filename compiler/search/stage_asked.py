"""What is asked of a stage's program beyond what it computes: pins, what to make again.

Stages that compute the same are planned once (stage_ends.py) where the same is asked of
them too, whatever its nodes are called.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from partita.compiler.ir.program import Program
from partita.compiler.rules.rule import RuleSet
from partita.compiler.search.again import Again
from partita.compiler.search.pinned import pins_by_node


def asked_of(
    program: Program,
    pins: Mapping[str, str],
    recompute: Sequence[str],
    rules: RuleSet,
) -> Hashable:
    """Return what stages have equal of which the same is asked, node by node.

    Args:
        program: of a stage.
        pins: those that name something of it.
        recompute: the patterns that match something of it.
        rules: the table of op rules.
    """
    if not pins and not recompute:
        return ()
    nodes = list(program.nodes())
    pinned = pins_by_node(program, pins)
    again = Again(program, rules, recompute).form(nodes)
    return tuple(str(pinned.get(node)) for node in nodes), again
