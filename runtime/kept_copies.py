"""Keep copies of slices in a program that is compiled as a whole, so memory may go.

A rank that goes on with a part of what it has copies the part (lower_boxings.py): what
it is of may go. Inductor takes a copy of what lies in order for nothing, and would hold
all of it as long as the part. A copy that is read when the rest no longer is becomes a
call of an op that Inductor knows nothing of; others are left to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, fx

from partita.compiler.capture.schemas import may_share_memory
from partita.compiler.capture.torch_private import FakeMode
from partita.runtime.flat_graph import note_types

aten = torch.ops.aten


@torch.library.custom_op("partita::own_copy", mutates_args=())
def own_copy(x: Tensor) -> Tensor:
    """Return a copy of ``x`` that lies in order."""
    return x.clone(memory_format=torch.contiguous_format)


@own_copy.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def keep_copies(
    module: fx.GraphModule, inputs: Sequence[Tensor], mode: FakeMode
) -> None:
    """Have a graph copy by an op of ours what is read when the rest no longer is.

    Args:
        module: a graph of ops on tensors alone; it is changed.
        inputs: of ``mode``; what it is changed to is right for their strides.
        mode: in which tensors have no values.
    """
    found = _outliving(module.graph)
    if not found:
        return
    note_types(module, inputs, mode)
    for node in found:
        part = cast(fx.Node, node.args[0])
        if cast(Tensor, part.meta["val"]).is_contiguous():
            with module.graph.inserting_before(node):
                copy = module.graph.call_function(
                    torch.ops.partita.own_copy.default, (part,)
                )
            node.replace_all_uses_with(copy)
            module.graph.erase_node(node)
    module.graph.lint()
    module.recompile()


def _outliving(graph: fx.Graph) -> list[fx.Node]:
    """Return copies of slices of what the graph makes that are read last."""
    maker: dict[fx.Node, fx.Node] = {}
    last: dict[fx.Node, int] = {}
    for position, node in enumerate(graph.nodes):
        is_view = may_share_memory(node.target) and node.all_input_nodes
        maker[node] = maker[node.all_input_nodes[0]] if is_view else node
        for each in (node, *node.all_input_nodes):
            last[maker[each]] = position
    copies: list[fx.Node] = []
    for node in graph.find_nodes(op="call_function", target=aten.clone.default):
        part = cast(fx.Node, node.args[0])
        whole = maker[part]
        is_made = part.target is aten.slice.Tensor and whole.op != "placeholder"
        if is_made and last[whole] < last[node]:
            copies.append(node)
    return copies
