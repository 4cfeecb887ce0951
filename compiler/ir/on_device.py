"""Where a program makes its tensors: capture knows no device, a run has one."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_aggregate

from partita.compiler.capture.schemas import makes_tensors
from partita.compiler.capture.torch_private import uncompiled


def on_device(module: fx.GraphModule, device: torch.device) -> fx.GraphModule:
    """Return a copy of ``module`` that makes tensors on ``device``.

    Every device that an op names is replaced, and given where an op that makes a tensor
    out of none names none; so too in the modules that it calls.
    """
    copy = uncompiled(module, _moved(module.graph, device))
    for name, region in module.named_children():
        if isinstance(region, fx.GraphModule):
            copy.add_module(name, fx.GraphModule(region, _moved(region.graph, device)))
    return copy


def arguments_on(
    node: fx.Node, device: torch.device, value: Callable[[fx.Node], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what ``node`` is called with to make its tensors on ``device``.

    ``value`` says what stands for an operand.
    """

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, fx.Node):
            return value(leaf)
        return device if isinstance(leaf, torch.device) else leaf

    args, kwargs = cast(
        "tuple[tuple[Any, ...], dict[str, Any]]",
        map_aggregate((node.args, node.kwargs), moved),
    )
    if _makes_tensors(node.target):
        kwargs = {**kwargs, "device": device}
    return args, kwargs


@lru_cache(maxsize=1 << 10)
def _makes_tensors(target: object) -> bool:
    """As ``makes_tensors``, which reads the schema of an op anew."""
    return makes_tensors(target)


def _moved(graph: fx.Graph, device: torch.device) -> fx.Graph:
    moved = fx.Graph()
    moved.output(moved.graph_copy(graph, val_map={}))
    for node in moved.nodes:
        node.args, node.kwargs = arguments_on(node, device, lambda operand: operand)
    return moved
