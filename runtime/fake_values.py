"""What the nodes of a graph make, as tensors without values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.node import map_arg


def values_of(
    module: fx.GraphModule, inputs: Sequence[torch.Tensor]
) -> dict[fx.Node, Any]:
    """Return what each node makes, and note it where passes of torch look for it.

    Args:
        module: a graph of ops on tensors alone.
        inputs: of a mode that holds here, in which tensors have no values.
    """
    found: dict[fx.Node, Any] = {}
    entering = iter(inputs)
    for node in module.graph.nodes:
        if node.op != "output":
            found[node] = node.meta["val"] = made(node, found, entering)
    return found


def made(
    node: fx.Node, values: Mapping[fx.Node, Any], entering: Iterator[torch.Tensor]
) -> Any:
    """Return what a node makes of ``values``, or the next of what is entering."""
    if node.op == "placeholder":
        return next(entering)
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    run = cast(Callable[..., Any], node.target)
    return run(*cast(Sequence[Any], args), **cast(dict[str, Any], kwargs))
