"""Let what a rank computes go on while gradients are being summed over the ranks.

Before   %1 = all_reduce(%g);  %2 = wait(%1);  %3 = mm(...);  return %2
After    %1 = all_reduce(%g);  %3 = mm(...);  %2 = wait(%1);  return %2

The wait for a sum moves to the first call that needs it, and so do views of it: parts
of a sum that several tensors share, a gradient in its parameter's shape. Other
collectives hold what they are given until somebody waited for them, so that a later
wait keeps more at once: theirs stay where the plan has them (part_messages.py). Sums
that are exchanges (exchange_instead.py) hold it as well, but are small where they pay:
theirs are moved, and what they hold until then is counted (compiler/cost/memory.py).

Requires  a LocalProgram
Ensures   collectives begin in the order in which they did
Keeps     every value, and what the machine's own sums hold at once
Source    S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
          Training", VLDB 2020, section 3.2.3: sums behind the backward
"""

from __future__ import annotations

from collections.abc import Set

import torch
from torch import fx

from partita.compiler.ir.local_program import LocalProgram
from partita.passes.ordering import in_order, missing

c10d = torch.ops._c10d_functional

_RESHAPE = torch.ops.aten.reshape.default  # of what is contiguous, a view too


def sink_waits(local: LocalProgram) -> LocalProgram:
    """Return the program with the waits for sums where the sums are needed."""
    nodes = local.graph_module.graph.nodes
    late: set[fx.Node] = set()
    for node in nodes:
        if _is_for_sum(node) or is_part(node, late):
            late.add(node)
    if not late:
        return local
    order: dict[fx.Node, None] = {}
    for node in nodes:
        if node not in late:
            order.update(dict.fromkeys(missing(node, order)))
    return in_order(local, list(order))


def is_part(node: fx.Node, late: Set[fx.Node]) -> bool:
    """Whether a call is a view of what is waited for late."""
    is_view = getattr(node.target, "is_view", False) or node.target is _RESHAPE
    return is_view and late >= set(node.all_input_nodes)


def _is_for_sum(node: fx.Node) -> bool:
    """Whether a call waits for an all-reduce, and somebody needs that."""
    if node.target is not c10d.wait_tensor.default or not node.users:
        return False
    (started,) = node.all_input_nodes
    return started.target in (c10d.all_reduce.default, c10d.all_reduce_.default)
