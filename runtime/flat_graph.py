"""A rank's program as one graph of ops on tensors alone.

Regions stand in it op by op, and where the rank is in the mesh is written into it, so
far as the program asks: ranks that differ in what it does not ask have one graph.
What its nodes make, so far as it is known before a run, can be noted by them.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, fx
from torch.fx.node import Argument, map_arg
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from partita.compiler.capture.torch_private import FakeMode, uncompiled
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.out_of_place import make_functional
from partita.compiler.ir.program import InputKind


def flatten(local: LocalProgram) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """Return the graph of a program, and which of its inputs that takes."""
    graph = fx.Graph()
    values: dict[fx.Node, Argument] = {}
    taken: list[int] = []
    placeholders = local.graph_module.graph.find_nodes(op="placeholder")
    for position, (node, role) in enumerate(
        zip(placeholders, local.inputs, strict=True)
    ):
        if role.kind is InputKind.COORDINATE:
            values[node] = local.coordinates[local.mesh.axis(role.name)]
        else:
            values[node] = graph.node_copy(node)
            taken.append(position)
    graph.output(_copied(local.graph_module, graph, values))
    make_functional(graph)
    graph.lint()
    return uncompiled(local.graph_module, graph), tuple(taken)


def note_types(
    module: fx.GraphModule, inputs: Sequence[Tensor], mode: FakeMode
) -> None:
    """Write into ``meta["val"]`` of each node what it makes, without its values.

    Args:
        module: a graph of ops on tensors alone.
        inputs: of ``mode``.
        mode: in which tensors have no values.
    """
    with torch.no_grad():
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*inputs)


def _copied(
    module: fx.GraphModule, graph: fx.Graph, values: dict[fx.Node, Argument]
) -> Argument:
    """Write the calls of ``module`` into ``graph``; return what it returns.

    ``values`` holds its inputs.
    """
    for node in module.graph.nodes:
        if node.op == "placeholder":
            continue
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        args = cast(tuple[Argument, ...], args)
        if node.op == "output":
            return args[0]
        if node.op == "call_module":
            region = module.get_submodule(cast(str, node.target))
            assert isinstance(region, fx.GraphModule)
            inputs = region.graph.find_nodes(op="placeholder")
            inner = dict(zip(inputs, args, strict=True))
            values[node] = _copied(region, graph, inner)
        elif _is_of_python(node) and not any(isinstance(x, fx.Node) for x in args):
            values[node] = cast(Argument, node.target(*args))
        else:
            values[node] = graph.create_node(node.op, node.target, args, kwargs)
    raise AssertionError("every graph has an output")


def _is_of_python(node: fx.Node) -> bool:
    """Whether a call computes with Python's numbers or takes one of a tuple."""
    return getattr(node.target, "__module__", "") == operator.add.__module__
