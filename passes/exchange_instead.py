"""Gather and scatter by exchanges where the plan's machine is faster so.

Before   %1 = all_gather_into_tensor(%x, 2, group);  %2 = wait(%1)
After    %0 = repeat(%x, [2, 1]);  %1 = all_to_all_single(%0, ...);  %2 = wait(%1)

Before   %1 = reduce_scatter_tensor(%x, sum, 2, group);  %2 = wait(%1)
After    %1 = all_to_all_single(%x, ...);  %3 = wait(%1)
         %4 = reshape(%3, [2, ...]);  %2 = sum(%4, [0])

Requires  a LocalProgram whose waits stand where they are to stay
Ensures   every member of a group does the same: what decides is equal on all of them
Keeps     every value (sums are added in the order of the ranks), and the bytes of each
          collective on the wire
Not here  which are carried out so: ``carried_out`` in compiler/cost/collectives.py, by
          the figures of the machine that the plan states
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.cost.collectives import (
    CollectiveKind,
    carried_out,
    may_be_exchanged,
)
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import info, set_info
from partita.compiler.ir.tensor_type import TensorType
from partita.passes.localize import boxing_of_part, part_key

aten = torch.ops.aten
c10d = torch.ops._c10d_functional

_KINDS: Mapping[object, CollectiveKind] = {
    c10d.all_gather_into_tensor.default: CollectiveKind.ALL_GATHER,
    c10d.reduce_scatter_tensor.default: CollectiveKind.REDUCE_SCATTER,
}

_REDUCTIONS = {
    "sum": aten.sum.dim_IntList,
    "max": aten.amax.default,
    "min": aten.amin.default,
}


def exchange_instead(local: LocalProgram, hardware: Hardware) -> LocalProgram:
    """Return the program with exchanges where ``hardware`` is faster by them."""
    return _Exchanger(local, hardware).run()


class _Exchanger:
    def __init__(self, local: LocalProgram, hardware: Hardware) -> None:
        self.local = local
        nodes = local.graph_module.graph.nodes
        self.exchanged = {n for n in nodes if _is_exchanged(n, local, hardware)}
        self.graph = fx.Graph()

    def run(self) -> LocalProgram:
        if not self.exchanged:
            return self.local
        copies: dict[fx.Node, fx.Node] = {}
        for node in self.local.graph_module.graph.nodes:
            if node in self.exchanged:
                (given,) = node.all_input_nodes
                copies[node] = self._start(node, copies[given])
                continue
            copies[node] = self.graph.node_copy(node, copies.__getitem__)
            for started in node.all_input_nodes:
                if started in self.exchanged and started.target in _ADDED:
                    copies[node] = self._add(node, started, copies[node])
        self.graph.lint()
        module = uncompiled(self.local.graph_module, self.graph)
        return replace(self.local, graph_module=module)

    def _start(self, call: fx.Node, given: fx.Node) -> fx.Node:
        """Emit the exchange that brings what ``call`` would bring."""
        shape, size = _type(call).shape, _group_size(call)
        if call.target not in _ADDED:
            rows = shape[0] // size
            times = [size, *(1 for _ in shape[1:])]
            given = self._part(call, aten.repeat.default, given, times)
        else:
            rows = shape[0]
        sizes, whole = [rows] * size, (size * rows, *shape[1:])
        exchange, group = c10d.all_to_all_single.default, call.args[-1]
        return self._part(call, exchange, given, sizes, sizes, group, shape=whole)

    def _add(self, wait: fx.Node, call: fx.Node, done: fx.Node) -> fx.Node:
        """Emit the sum, or the like, of what each rank had for this one."""
        type_ = _type(call)
        whole = (_group_size(call) * type_.shape[0], *type_.shape[1:])
        set_info(done, replace(info(call), types=(TensorType(whole, type_.dtype),)))
        parts = [_group_size(call), *type_.shape]
        apart = self._part(call, aten.reshape.default, done, parts)
        reduction = str(call.args[1])
        kwargs: dict[str, Any] = {"dtype": type_.dtype} if reduction == "sum" else {}
        op = _REDUCTIONS[reduction]
        result = self.graph.call_function(op, (apart, [0]), kwargs)
        set_info(result, info(wait))
        return result

    def _part(
        self, call: fx.Node, target: Any, *args: Any, shape: Sequence[int] | None = None
    ) -> fx.Node:
        """Emit a call that is a part of the boxing that ``call`` is one of."""
        fact, node = info(call), self.graph.call_function(target, args)
        types = () if shape is None else (TensorType(tuple(shape), _type(call).dtype),)
        key = part_key(boxing_of_part(fact.key), node.name)
        set_info(node, replace(fact, key=key, types=types))
        return node


_ADDED = (c10d.reduce_scatter_tensor.default,)


def _is_exchanged(node: fx.Node, local: LocalProgram, hardware: Hardware) -> bool:
    kind = _KINDS.get(node.target)
    if kind is None or not may_be_exchanged(kind, hardware.device):
        return False
    type_, size = _type(node), _group_size(node)
    # What a rank puts in: of a gather its shard, of a scatter all that is added up.
    is_gather = kind is CollectiveKind.ALL_GATHER
    payload = type_.num_bytes // size if is_gather else type_.num_bytes * size
    axis = local.mesh.axis(str(node.args[-1]).rpartition("/")[2])
    carried = carried_out(kind, payload, local.mesh, axis, hardware)
    return carried[0] is CollectiveKind.ALL_TO_ALL


def _type(call: fx.Node) -> TensorType:
    (found,) = info(call).types
    assert found is not None
    return found


def _group_size(call: fx.Node) -> int:
    size = call.args[-2]
    assert isinstance(size, int)
    return size
