"""Run a rank's program in double precision: every float dtype it names becomes f64.

Before          %1: bf16[8] = _to_copy(%0, dtype=bf16)
After           %1: f64[8]  = _to_copy(%0, dtype=f64)

Requires  nothing
Ensures   no floating dtype but float64 is named in the graph
Not here  promoting what is fed (the caller feeds doubles)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx
from torch.fx.node import map_aggregate

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import has_info, info, set_info
from partita.compiler.ir.tensor_type import TensorType


def promote_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float64 for a floating dtype, complex128 for a complex one.

    >>> promote_dtype(torch.bfloat16), promote_dtype(torch.int64)
    (torch.float64, torch.int64)
    """
    if dtype.is_complex:
        return torch.complex128
    return torch.float64 if dtype.is_floating_point else dtype


def promote_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor`` in double precision, or itself where it holds no floats."""
    return tensor.to(promote_dtype(tensor.dtype))


def promote_arguments(arguments: Any) -> Any:
    """Return nested arguments of an op with every dtype among them promoted."""

    def promoted(leaf: Any) -> Any:
        return promote_dtype(leaf) if isinstance(leaf, torch.dtype) else leaf

    return map_aggregate(arguments, promoted)


def promote_precision(ranks: Sequence[LocalProgram]) -> list[LocalProgram]:
    """Return the programs of ``ranks`` in double precision; shared graphs stay so."""
    modules: dict[fx.GraphModule, fx.GraphModule] = {}
    for local in ranks:
        if local.graph_module not in modules:
            modules[local.graph_module] = _promote_module(local.graph_module)
    return [
        replace(
            local,
            graph_module=modules[local.graph_module],
            input_types=tuple(_promote_type(t) for t in local.input_types),
            output_types=tuple(_promote_type(t) for t in local.output_types),
            constants={n: promote_tensor(t) for n, t in local.constants.items()},
        )
        for local in ranks
    ]


def _promote_module(module: fx.GraphModule) -> fx.GraphModule:
    """Return ``module``, and the fused regions that it calls, in double precision."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}

    def promoted_leaf(leaf: Any) -> Any:
        if isinstance(leaf, fx.Node):
            return values[leaf]
        return promote_dtype(leaf) if isinstance(leaf, torch.dtype) else leaf

    for node in module.graph.nodes:
        args, kwargs = map_aggregate((node.args, node.kwargs), promoted_leaf)
        copy = graph.create_node(node.op, node.target, args, kwargs, node.name)
        values[node] = copy
        if has_info(node):
            fact = info(node)
            types = tuple(_promote_type(t) for t in fact.types)
            set_info(copy, fact if types == fact.types else replace(fact, types=types))
    promoted = uncompiled(module, graph)
    for name, region in module.named_children():
        assert isinstance(region, fx.GraphModule)
        promoted.add_module(name, _promote_module(region))
    return promoted


def _promote_type(type_: TensorType | None) -> TensorType | None:
    if type_ is None or promote_dtype(type_.dtype) == type_.dtype:
        return type_
    return TensorType(type_.shape, promote_dtype(type_.dtype))
