"""Let sums over the ranks begin when what is added up is there, not when it is needed.

Before   %1 = mm(%g, ...);  %2 = mm(...);  %3 = all_reduce(%1);  %4 = wait(%3)
After    %1 = mm(%g, ...);  %3 = all_reduce(%1);  %2 = mm(...);  %4 = wait(%3)

The backward of a product makes the gradient of its input first, which has to be added
up where the matrix is split by columns, then that of the matrix: which nobody waits
for, so that it is computed while the sum is on its way.

Requires  a LocalProgram, waits for sums where the sums are needed (sink_waits)
Ensures   collectives begin in the order in which they did
Keeps     every value; of a sum its buffer is held in place of what went into it, of an
          exchange that for each rank, and what comes from each
Source    M. Shoeybi et al., "Megatron-LM", arXiv:1909.08053: its linear layers reduce
          the gradient of their input beside that of their matrix
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

import torch
from torch import fx

from partita.compiler.ir.local_program import LocalProgram
from partita.passes.ordering import in_order

c10d = torch.ops._c10d_functional

_SUMS = (c10d.all_reduce.default, c10d.all_reduce_.default)


def begin_sums(local: LocalProgram) -> LocalProgram:
    """Return the program with sums that begin as early as they can."""
    nodes = local.graph_module.graph.nodes
    left = deque(node for node in nodes if _begins(node))
    if not any(node.target in _SUMS for node in left):
        return local
    order: dict[fx.Node, None] = {}
    for node in nodes:
        if node in order:
            continue
        order[node] = None
        if left and node is left[0]:
            left.popleft()
            continue  # whoever waits at once for what was begun does so first
        while left and left[0].target in _SUMS and _is_fed(left[0], order):
            order[left.popleft()] = None
    return in_order(local, list(order))


def _begins(node: fx.Node) -> bool:
    """Whether a call begins a collective."""
    is_wait = node.target is c10d.wait_tensor.default
    return getattr(node.target, "namespace", "") == "_c10d_functional" and not is_wait


def _is_fed(node: fx.Node, known: Container[fx.Node]) -> bool:
    return all(given in known for given in node.all_input_nodes)
