"""Peak bytes of one rank over a step, from the program's own order.

State lives for the whole step: parameters, their gradients, the optimizer's moments,
buffers. Everything else lives from the node that makes it to its last use; a node
that only regroups its operand shares that operand's memory. Boxed copies count where
they are used; workspace inside kernels does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import fx

from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Program,
    Value,
    info,
    operands,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Placement

# Tensors of the parameter's size that an optimizer keeps.
MOMENTS = {"sgd": 0, "adam": 2, "adamw": 2}

_SHARES_MEMORY = {
    torch.ops.aten.reshape.default,
    torch.ops.aten.permute.default,
    torch.ops.aten.expand.default,
    torch.ops.aten.slice.Tensor,
    torch.ops.aten.select.int,
    torch.ops.aten.split_with_sizes.default,
}


def peak_bytes(
    program: Program,
    placements: Mapping[Value, Placement],
    mesh: Mesh,
    optimizer: str,
) -> dict[str, int]:
    """Return the bytes of the rank that holds most, by category."""

    def held(value: Value) -> int:
        type_ = type_of(value)
        numel = largest_shard_numel(type_.shape, placements[value], mesh)
        return numel * type_.dtype.itemsize

    parts = {"parameters": 0, "gradients": 0, "optimizer": 0, "buffers": 0}
    trained = {r.name for r in program.outputs if r.kind is OutputKind.GRADIENT}
    for node, role in program.placeholders():
        num_bytes = held(Value(node, 0))
        if role.kind is InputKind.PARAMETER:
            parts["parameters"] += num_bytes
            if role.name in trained:
                parts["gradients"] += num_bytes
                parts["optimizer"] += num_bytes * MOMENTS[optimizer]
        else:
            parts["buffers"] += num_bytes
    parts["activations"] = _peak_of_activations(program, held)
    return parts


def _peak_of_activations(program: Program, held: Callable[[Value], int]) -> int:
    calls = list(program.calls())
    position = {node: index for index, node in enumerate(calls)}
    root = {node: _owner(node) for node in calls}
    leaving = [value_of(node).node for node, _ in program.results()]
    kept = {root.get(node, node) for node in leaving}
    last: dict[fx.Node, int] = {}
    for node in calls:
        for value in operands(node):
            owner = root.get(value.node)
            if owner is not None:
                last[owner] = position[node]
    dies: dict[int, list[fx.Node]] = {}
    for node, index in last.items():
        if node not in kept:
            dies.setdefault(index, []).append(node)
    live = peak = 0
    for index, node in enumerate(calls):
        if root[node] is node:
            live += _bytes_of(node, held)
        peak = max(peak, live)
        live -= sum(_bytes_of(dead, held) for dead in dies.get(index, ()))
    return peak


def _owner(node: fx.Node) -> fx.Node:
    """Return the node whose memory ``node`` shares: itself unless it is a view."""
    while node.op == "call_function" and node.target in _SHARES_MEMORY:
        node = operands(node)[0].node
    return node


def _bytes_of(node: fx.Node, held: Callable[[Value], int]) -> int:
    if node.op != "call_function":
        return 0
    types = info(node).types
    return sum(held(Value(node, i)) for i, t in enumerate(types) if t is not None)
