"""Gather, scatter and add up by exchanges where the plan's machine is faster so.

Before   %1 = all_gather_into_tensor(%x, 2, group);  %2 = wait(%1)
After    %0 = repeat(%x, [2, 1]);  %1 = all_to_all_single(%0, ...);  %2 = wait(%1)

Before   %1 = reduce_scatter_tensor(%x, sum, 2, group);  %2 = wait(%1)
After    %1 = all_to_all_single(%x, ...);  %3 = wait(%1)
         %4 = reshape(%3, [2, ...]);  %2 = sum(%4, [0])

Before   %1 = all_reduce(%x, sum, group);  %2 = wait(%1)
After    %0 = repeat(%x, [2, 1]);  %1 = all_to_all_single(%0, ...);  %3 = wait(%1)
         %4 = reshape(%3, [2, ...]);  %2 = sum(%4, [0])

What is sent in a bucket is laid side by side for each rank at once, in the place of a
buffer that would be repeated.

Requires  a LocalProgram whose waits stand where they are to stay
Ensures   every member of a group does the same: what decides is equal on all of them
Keeps     every value (sums are added in the order of the ranks, on all of them alike);
          where collectives begin, and where they are waited for
Not here  which are carried out so: ``carried_out`` in compiler/cost/collectives.py, by
          the figures of the machine that the plan states
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.cost.collectives import (
    REPEATED,
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
    c10d.all_reduce.default: CollectiveKind.ALL_REDUCE,
    c10d.all_reduce_.default: CollectiveKind.ALL_REDUCE,
    c10d.reduce_scatter_tensor.default: CollectiveKind.REDUCE_SCATTER,
}

_ADDED = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)

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
        self.laid = {n.args[0]: n for n in self.exchanged if _is_of_bucket(n)}
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
            if node in self.laid:
                parts, *dim = copies[node].args
                size = self._size(self.laid[node])
                copies[node].args = (size * list(cast(list[fx.Node], parts)), *dim)
            for started in node.all_input_nodes:
                if started in self.exchanged and _KINDS[started.target] in _ADDED:
                    copies[node] = self._add(node, started, copies[node])
        self.graph.lint()
        module = uncompiled(self.local.graph_module, self.graph)
        return replace(self.local, graph_module=module)

    def _start(self, call: fx.Node, given: fx.Node) -> fx.Node:
        """Emit the exchange that brings what ``call`` would bring."""
        kind, shape, size = _KINDS[call.target], _type(call).shape, self._size(call)
        rows = shape[0] if shape else 1
        if kind is CollectiveKind.ALL_GATHER:
            rows //= size
        if kind in REPEATED and not _is_of_bucket(call):
            times = [size, *(1 for _ in shape[1:])]
            given = self._part(call, aten.repeat.default, given, times)
        sizes, whole = [rows] * size, (size * rows, *shape[1:])
        exchange, group = c10d.all_to_all_single.default, call.args[-1]
        return self._part(call, exchange, given, sizes, sizes, group, shape=whole)

    def _add(self, wait: fx.Node, call: fx.Node, done: fx.Node) -> fx.Node:
        """Emit the sum, or the like, of what each rank had for this one."""
        type_, size = _type(call), self._size(call)
        rows = size * (type_.shape[0] if type_.shape else 1)
        whole = TensorType((rows, *type_.shape[1:]), type_.dtype)
        set_info(done, replace(info(call), types=(whole,)))
        parts = [size, *type_.shape]
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

    def _size(self, call: fx.Node) -> int:
        """Return how many ranks a call joins."""
        return self.local.mesh.sizes[_axis(call, self.local)]


def _is_exchanged(node: fx.Node, local: LocalProgram, hardware: Hardware) -> bool:
    kind = _KINDS.get(node.target)
    if kind is None or not may_be_exchanged(kind, hardware.device):
        return False
    axis = _axis(node, local)
    payload, size = _type(node).num_bytes, local.mesh.sizes[axis]
    # What a rank puts in: of a gather its shard, of a scatter all that is added up.
    if kind is CollectiveKind.ALL_GATHER:
        payload //= size
    elif kind is CollectiveKind.REDUCE_SCATTER:
        payload *= size
    carried = carried_out(kind, payload, local.mesh, axis, hardware)
    return carried[0] is CollectiveKind.ALL_TO_ALL


def _type(call: fx.Node) -> TensorType:
    (found,) = info(call).types
    assert found is not None
    return found


def _axis(call: fx.Node, local: LocalProgram) -> int:
    return local.mesh.axis(str(call.args[-1]).rpartition("/")[2])


def _is_of_bucket(call: fx.Node) -> bool:
    """Whether a sum is made in a buffer that its parts were laid in for it."""
    (given,) = call.all_input_nodes
    is_laid = given.target is aten.cat.default and list(given.users) == [call]
    return call.target is c10d.all_reduce_.default and is_laid
