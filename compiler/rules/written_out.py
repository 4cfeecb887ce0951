"""Write the rules' own ops out in ops of torch, for a compiler that knows only those.

To it another op is a call of Python that takes and makes whole tensors. Written out,
what an op copies and compares becomes a part of the loops around it. So is what it
computes otherwise than torch does (ceiled_pools.py).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import Argument, map_arg

from partita.compiler.capture.attention import attend, attend_backward
from partita.compiler.capture.torch_private import FakeMode, pytree, uncompiled
from partita.compiler.rules import position_ops
from partita.compiler.rules.ceiled_pools import share_out

aten, partita = torch.ops.aten, torch.ops.partita


def _on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` for tensors on CPUs; other ones are left to the op."""

    def written(*args: Any) -> Any:
        return function(*args) if args[0].device.type == "cpu" else NotImplemented

    return written


WRITTEN_OUT: Mapping[Any, Callable[..., Any]] = {
    partita.attention.default: attend,
    partita.attention_backward.default: attend_backward,
    partita.gather.default: _on_cpu(position_ops.pick),
    partita.index.default: _on_cpu(position_ops.look_up),
    partita.scatter.default: position_ops.scatter_by_comparing,
    aten.avg_pool2d_backward.default: partial(share_out, 2),
    aten.avg_pool3d_backward.default: partial(share_out, 3),
}
"""By op, the function; it returns ``NotImplemented`` of a call that stays as it is."""


def write_out(
    module: fx.GraphModule, inputs: Sequence[torch.Tensor], mode: FakeMode
) -> fx.GraphModule:
    """Return ``module`` with the ops of ``WRITTEN_OUT`` in ops of torch.

    Args:
        module: a graph of ops on tensors alone.
        inputs: of ``mode``; what is written is right for their shapes and strides.
        mode: in which tensors have no values.
    """
    if not any(node.target in WRITTEN_OUT for node in module.graph.nodes):
        return module
    graph = fx.Graph()
    values: dict[fx.Node, Any] = {}
    written: dict[fx.Node, Argument] = {}
    entering = iter(inputs)
    with mode, torch.no_grad():
        for node in module.graph.nodes:
            args, kwargs = map_arg((node.args, node.kwargs), written.__getitem__)
            if node.op == "output":
                graph.output(cast(tuple[Argument, ...], args)[0])
                continue
            if node.op == "placeholder":
                values[node] = next(entering)
                written[node] = graph.node_copy(node)
                continue
            given, named = map_arg((node.args, node.kwargs), values.__getitem__)
            given = cast(tuple[Any, ...], given)
            function = WRITTEN_OUT.get(node.target, _stays)
            values[node] = function(*given)
            if values[node] is not NotImplemented:
                written[node] = _inlined(_traced(function, given), graph, args)
                continue
            values[node] = node.target(*given, **cast(dict[str, Any], named))
            if node.target is operator.getitem and isinstance(args[0], tuple):
                written[node] = args[0][cast(int, args[1])]
            else:
                written[node] = graph.create_node(node.op, node.target, args, kwargs)
    graph.lint()
    return uncompiled(module, graph)


def _stays(*_: Any) -> Any:
    return NotImplemented


def _traced(function: Callable[..., Any], args: tuple[Any, ...]) -> fx.Graph:
    """Return what a call is written as: a graph of the tensors that it takes."""
    leaves, tree = pytree.tree_flatten(args)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def run(*tensors: torch.Tensor) -> Any:
        own = dict(zip(at, tensors, strict=True))
        every = [own.get(i, leaf) for i, leaf in enumerate(leaves)]
        return function(*pytree.tree_unflatten(every, tree))

    return make_fx(run)(*(leaves[i] for i in at)).graph


def _inlined(own: fx.Graph, graph: fx.Graph, args: Any) -> Argument:
    """Write the calls of ``own`` into ``graph``; return what it returns."""
    taken = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, fx.Node)]
    inputs = own.find_nodes(op="placeholder")
    values = dict(zip(inputs, taken, strict=True))
    return graph.graph_copy(own, cast(dict[fx.Node, fx.Node], values))
