"""Exchange complex numbers as the pairs of real ones that they are.

Before   %1: c64[4, 3] = all_to_all_single(%x, ...);  %2 = wait(%1)
After    %0: f32[4, 3, 2] = view_as_real(%x);  %1 = all_to_all_single(%0, ...)
         %3 = wait(%1);  %2: c64[4, 3] = view_as_complex(%3)

Requires  a LocalProgram whose waits stand where they are to stay
Ensures   no all-to-all is of complex numbers
Keeps     every value, and what passes between ranks
Not here  other collectives, of which torch makes pairs by itself
Source    gloo and NCCL have no complex numbers ("Invalid scalar type")
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import NodeInfo, has_info, info, set_info
from partita.compiler.ir.tensor_type import TensorType
from partita.passes.localize import boxing_of_part, part_key

aten = torch.ops.aten
c10d = torch.ops._c10d_functional


def exchange_pairs(local: LocalProgram) -> LocalProgram:
    """Return the program with pairs in its all-to-alls of complex numbers."""
    nodes = local.graph_module.graph.nodes
    exchanges = {node for node in nodes if _is_of_complex(node)}
    if not exchanges:
        return local
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        copy = graph.node_copy(node, copies.__getitem__)
        copies[node] = copy
        if node in exchanges:
            with graph.inserting_before(copy):
                pairs = graph.call_function(aten.view_as_real.default, copy.args[:1])
            set_info(pairs, _part(info(node), pairs))
            copy.args = (pairs, *copy.args[1:])
            set_info(copy, _of_pairs(info(node)))
        elif any(given in exchanges for given in node.all_input_nodes):
            whole = graph.call_function(aten.view_as_complex.default, (copy,))
            set_info(whole, info(node))
            set_info(copy, _of_pairs(_part(info(node), copy, info(node).types)))
            copies[node] = whole
    graph.lint()
    module = uncompiled(local.graph_module, graph)
    return replace(local, graph_module=module)


def _is_of_complex(node: fx.Node) -> bool:
    if node.target is not c10d.all_to_all_single.default or not has_info(node):
        return False
    return any(type_ and type_.dtype.is_complex for type_ in info(node).types)


def _part(
    fact: NodeInfo, node: fx.Node, types: tuple[TensorType | None, ...] = ()
) -> NodeInfo:
    """Return what is known of a node that is a part of the same boxing."""
    key = part_key(boxing_of_part(fact.key), node.name)
    return replace(fact, key=key, types=types)


def _of_pairs(fact: NodeInfo) -> NodeInfo:
    """Return what is known of a node whose numbers are pairs now."""
    (type_,) = fact.types
    assert type_ is not None
    real = type_.dtype.to_real()
    return replace(fact, types=(TensorType((*type_.shape, 2), real),))
