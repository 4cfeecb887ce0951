"""Where a program makes its tensors: capture knows no device, a run has one."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx.node import map_aggregate

from partita.compiler.capture.torch_private import makes_tensors, uncompiled


def on_device(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """Return a copy of ``module`` that makes tensors on ``device``.

    Every device that an op names is replaced, and given where an op that makes a tensor
    out of none names none; so too in the modules that it calls.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, val_map={}))
    for node in graph.nodes:
        node.args, node.kwargs = map_aggregate(
            (node.args, node.kwargs),
            lambda leaf: device if isinstance(leaf, torch.device) else leaf,
        )
        if makes_tensors(node.target):
            node.kwargs = {**node.kwargs, "device": device}
    copy = uncompiled(module, graph)
    for name, child in module.named_children():
        if isinstance(child, fx.GraphModule):
            copy.add_module(name, on_device(child, device))
    return copy
