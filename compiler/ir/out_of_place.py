"""Collectives that write to their operand, as functions of it."""

from __future__ import annotations

import torch
from torch import fx

_FUNCTIONS = {
    torch.ops._c10d_functional.all_reduce_.default: (
        torch.ops._c10d_functional.all_reduce.default
    )
}


def make_functional(graph: fx.Graph) -> None:
    """Replace what sums up in a buffer of its own: torch functionalizes no such op.

    Nobody else reads such a buffer (passes/send_together.py), so that nothing changes
    but where the sum lies.
    """
    for node in graph.nodes:
        if node.op == "call_function":
            node.target = _FUNCTIONS.get(node.target, node.target)
