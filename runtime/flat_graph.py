"""A rank's program as one graph of ops on tensors alone.

Regions stand in it op by op, and where the rank is in the mesh is written into it, so
far as the program asks: ranks that differ in what it does not ask have one graph.
What its nodes make, so far as it is known before a run, can be noted by them.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
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
    numbers = {
        position: local.coordinates[local.mesh.axis(role.name)]
        for position, role in enumerate(local.inputs)
        if role.kind is InputKind.COORDINATE
    }
    taken = (at for at in range(len(local.inputs)) if at not in numbers)
    return with_numbers(local.graph_module, numbers), tuple(taken)


def with_numbers(module: fx.GraphModule, numbers: Mapping[int, int]) -> fx.GraphModule:
    """Return the graph of a module with numbers that it is given written into it.

    Args:
        module: its regions stand in the graph op by op.
        numbers: by position among its inputs; the graph takes the others alone.
    """
    graph = fx.Graph()
    placeholders = module.graph.find_nodes(op="placeholder")
    values: dict[fx.Node, Argument] = {
        node: numbers[position] if position in numbers else graph.node_copy(node)
        for position, node in enumerate(placeholders)
    }
    graph.output(_copied(module, graph, values))
    make_functional(graph)
    graph.lint()
    return uncompiled(module, graph)


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
