"""Send what the boxings of a bucket send in one buffer, on one rank's graph.

Before          %2 = all_reduce(%1);  %3 = wait(%2);  ...;  %6 = all_reduce(%5); ...
After           ...;  %7 = cat([reshape(%1, [-1]), reshape(%5, [-1])])
                %8 = all_reduce_(%7);  %9 = wait(%8);  %3 = reshape(slice(%9)); ...

A bucket stands where the last of its boxings stood; what uses its results earlier
moves behind it. Sums are made in the buffer itself, and their results are views of it;
what is scattered are views too, what was gathered is copied out.

Requires  buckets of boxings that call the same collectives (plan/check_buckets.py)
Ensures   one collective where there were several
Keeps     every value; the order of everything else, as far as it can be kept
Not here  choosing buckets (search), waiting for them later (sink_waits)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.errors import BadPlan
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import NodeInfo, has_info, info, set_info
from partita.compiler.ir.tensor_type import TensorType
from partita.passes.localize import boxing_of_part, part_key
from partita.passes.ordering import ordered, units_of

aten = torch.ops.aten
c10d = torch.ops._c10d_functional

Buckets = Sequence[tuple[str, ...]]

_SUM = c10d.all_reduce.default
_GATHER = c10d.all_gather_into_tensor.default
_SCATTER = c10d.reduce_scatter_tensor.default


def send_together(local: LocalProgram, buckets: Buckets) -> LocalProgram:
    """Return ``local`` with one collective for each step of a bucket.

    Boxings that the program does not have are no matter: they are carried out before
    it, or behind.

    Raises:
        BadPlan: for a bucket that has to wait for itself.
    """
    return _Sender(local, buckets).run() if buckets else local


class _Sender:
    def __init__(self, local: LocalProgram, buckets: Buckets) -> None:
        self.local = local
        self.buckets = buckets
        number = {key: i for i, keys in enumerate(buckets) for key in keys}
        self.boxings = number.keys()
        self.nodes = list(local.graph_module.graph.nodes)
        self.rows: dict[int, dict[str, list[fx.Node]]] = {}
        self.bucket_of: dict[fx.Node, int] = {}
        for node in self.nodes:
            key = _boxing_of(node, number)
            if key is not None:
                row = self.rows.setdefault(number[key], {}).setdefault(key, [])
                row.append(node)
                self.bucket_of[node] = number[key]
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}

    def run(self) -> LocalProgram:
        order, stuck = ordered(units_of(self.nodes, self.bucket_of))
        if stuck:
            bucket = next(
                self.bucket_of[unit[0]] for unit in stuck if unit[0] in self.bucket_of
            )
            raise BadPlan(
                f"buckets[{bucket}]: one of its boxings needs what another has made"
            )
        for unit in order:
            bucket = self.bucket_of.get(unit[0])
            if bucket is None:
                self._copy(unit)
            else:
                self._emit([*self.rows[bucket].values()])
        self.graph.lint()
        module = uncompiled(self.local.graph_module, self.graph)
        return replace(self.local, graph_module=module)

    def _copy(self, nodes: Sequence[fx.Node]) -> None:
        for node in nodes:
            self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)

    def _emit(self, rows: list[list[fx.Node]]) -> None:
        """Emit the boxings of a bucket, side by side up to each of their collectives.

        Of tensors that are empty here there is no collective: as a tensor is gathered
        axis by axis, it may be empty up to one of them. Then the others come first;
        the one that has most of them has all, in the order of every rank.
        """
        while rows:
            sent = [[node for node in row if _is_collective(node)] for row in rows]
            next_one = _first_of(max(sent, key=len))
            rest: list[list[fx.Node]] = []
            calls: list[fx.Node] = []
            for row, own in zip(rows, sent, strict=True):
                if not own:
                    self._copy(row)
                elif _first_of(own) == next_one:
                    at = row.index(own[0])
                    self._copy(row[:at])
                    calls.append(own[0])
                    rest.append(row[at + 2 :])  # behind the wait for it
                else:
                    rest.append(row)
            rows = rest
            if len(calls) == 1:
                self._copy([calls[0], *_waits(calls[0])])
            elif calls:
                self._send(calls)

    def _send(self, calls: Sequence[fx.Node]) -> None:
        """Emit one collective for all, and what each of them gets of it."""
        first, target = calls[0], calls[0].target
        _, *constants = first.args
        size = _group_size(first)
        parts = [_sent_numel(call) for call in calls]
        flat = [self._reshaped(self.copies[c.all_input_nodes[0]], c) for c in calls]
        fact, total = info(first), sum(parts)
        sent_shape = (size, total) if target is _SCATTER else (total,)
        buffer = self._call(fact, aten.cat.default, flat, len(sent_shape) - 1)
        made = (1, total) if target is _SCATTER else (size * total,)
        type_ = TensorType(made, _type(first).dtype)
        operation = c10d.all_reduce_.default if target is _SUM else target
        started = self._call(fact, operation, buffer, *constants, type=type_)
        done = self._call(fact, c10d.wait_tensor.default, started, type=type_)
        if target is _GATHER:
            done = self._call(fact, aten.reshape.default, done, [size, total])
        dim = 0 if target is _SUM else 1
        start = 0
        for call, num in zip(calls, parts, strict=True):
            stop = start + num
            (wait,) = _waits(call)
            own = self._call(info(wait), aten.slice.Tensor, done, dim, start, stop)
            if target is _GATHER:  # a view would hold the whole of the buffer
                own = self._call(info(wait), aten.clone.default, own)
                own.kwargs = {"memory_format": torch.contiguous_format}
            result = self.graph.call_function(
                aten.reshape.default, (own, list(_type(wait).shape))
            )
            set_info(result, info(wait))
            self.copies[call] = self.copies[wait] = result
            start = stop

    def _reshaped(self, x: fx.Node, call: fx.Node) -> fx.Node:
        shape = [_group_size(call), -1] if call.target is _SCATTER else [-1]
        return self._call(info(call), aten.reshape.default, x, shape)

    def _call(
        self, fact: NodeInfo, target: Any, *args: Any, type: TensorType | None = None
    ) -> fx.Node:
        """Emit a call that is a part of the boxing that ``fact`` is of."""
        node = self.graph.call_function(target, args)
        is_whole = fact.key in self.boxings
        boxing = fact.key if is_whole else boxing_of_part(fact.key)
        key = part_key(boxing, node.name)
        types = () if type is None else (type,)
        set_info(node, replace(fact, key=key, types=types, signature=None))
        return node


def _boxing_of(node: fx.Node, known: Mapping[str, int]) -> str | None:
    """Return the key of the boxing that a node is of, if that is in a bucket."""
    if node.op != "call_function" or not has_info(node):
        return None
    key = info(node).key
    if key in known:
        return key
    part = boxing_of_part(key)
    return part if part in known else None


def _is_collective(node: fx.Node) -> bool:
    return node.target in (_SUM, _GATHER, _SCATTER)


def _waits(call: fx.Node) -> list[fx.Node]:
    return list(call.users)


def _type(node: fx.Node) -> TensorType:
    (found,) = info(node).types
    assert found is not None
    return found


def _first_of(calls: Sequence[fx.Node]) -> list[object]:
    """Return what the first of some collectives does, and among whom; [] of none."""
    return [calls[0].target, *calls[0].args[1:]] if calls else []


def _group_size(call: fx.Node) -> int:
    """Return the ranks of a gather or a scatter; 1 for a sum, which does not say it."""
    size = 1 if call.target is _SUM else call.args[-2]
    assert isinstance(size, int)
    return size


def _sent_numel(call: fx.Node) -> int:
    """Return the elements that one rank has of what is gathered, or of what is made."""
    numel = prod(_type(call).shape)
    return numel // _group_size(call) if call.target is _GATHER else numel
