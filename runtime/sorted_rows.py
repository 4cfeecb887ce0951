"""Bring rows in the order of their groups once, for all products of these groups.

A plan has the rows of a mixture of experts as they lie, so that they can be split
(``unsort.py``), and each product finds those of its groups by itself. On a rank they
are brought in order once, and stay so from one product to the next: what works on each
row by itself may do so in any order.

    multiply(x, weight, member)  =  sorted_multiply(x[order], weight, ends)[inverse]

Rows of no group are zeros before anything else has them. Where one kernel multiplies
all groups it stands in the graph itself, which Inductor knows more of than of our op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from partita.compiler.capture import grouped as grouped  # defines ops
from partita.compiler.capture.sorted_groups import fits_kernel, order_of  # defines ops
from partita.compiler.capture.torch_private import FakeMode
from partita.runtime.flat_graph import note_types

aten, partita = torch.ops.aten, torch.ops.partita

_MULTIPLY = partita.grouped_multiply.default
_OUTER = partita.grouped_outer.default

_NUM_ROWS: dict[Any, int] = {_MULTIPLY: 1, _OUTER: 2}
"""By op how many of its operands, the first, are rows."""

_PERMUTE = aten.permute.default
_KERNEL = aten._grouped_mm.default

_BY_COLUMNS: dict[Any, int] = {
    aten.slice.Tensor: 1,
    aten.slice_backward.default: 2,
    aten.cat.default: 1,
}
"""Ops that work on each row by itself if this argument, a dim, is not that of rows."""


def sort_rows(
    module: fx.GraphModule, inputs: Sequence[torch.Tensor], mode: FakeMode
) -> None:
    """Have a graph bring rows in order once for all products of the same groups.

    Args:
        module: a graph of ops on tensors alone; it is changed.
        inputs: of ``mode``; what it is changed to is right for their types alone.
        mode: in which tensors have no values.
    """
    nodes = [node for node in module.graph.nodes if node.target in _NUM_ROWS]
    members = dict.fromkeys([cast(fx.Node, node.args[2]) for node in nodes])
    if not members:
        return
    _take_back_turns(module.graph)
    with mode, torch.no_grad():
        note_types(module, inputs, mode)
        values = {node: node.meta.get("val") for node in module.graph.nodes}
        for member in members:
            if values[member].shape[0] > 1:
                own = [node for node in nodes if node.args[2] is member]
                _Sorter(module.graph, values, member).sort(own)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


def _take_back_turns(graph: fx.Graph) -> None:
    """Have rows that are turned to columns and back be the rows that they were."""
    for node in graph.find_nodes(op="call_function", target=_PERMUTE):
        source, order = cast(tuple[fx.Node, list[int]], node.args)
        if source.target is not _PERMUTE:
            continue
        first, before = cast(tuple[fx.Node, list[int]], source.args)
        if [before[dim] for dim in order] == sorted(order):
            node.replace_all_uses_with(first)


class _Sorter:
    """Sorts the rows of one set of groups."""

    def __init__(
        self, graph: fx.Graph, values: dict[fx.Node, Any], member: fx.Node
    ) -> None:
        self.graph = graph
        self.values = values
        self.num_rows = values[member].shape[0]
        self.known: dict[fx.Node, fx.Node] = {}  # in order, by what is as it lies
        ordering = make_fx(order_of)(values[member]).graph
        (entering,) = ordering.find_nodes(op="placeholder")
        with graph.inserting_before(member.next):
            every = graph.graph_copy(ordering, {entering: member})
        self.order, self.inverse, self.ends, self.is_past = cast(list[fx.Node], every)

    def sort(self, products: Sequence[fx.Node]) -> None:
        for node in products:
            given = [cast(fx.Node, each) for each in node.args[:2]]
            num = _NUM_ROWS[node.target]
            with self.graph.inserting_before(node):
                rows = [self._in_order(each) for each in given[:num]]
                made = self._multiplied(node, [*rows, *given[num:]])
                if node.target is _MULTIPLY:  # whose result has rows, too
                    filled = self._call(aten.masked_fill.Scalar, made, self.is_past, 0)
                    made = self._taken(filled, self.inverse)
                    self.known[made] = filled
                    self.values[made] = self.values[node]
            node.replace_all_uses_with(made)
            self.graph.erase_node(node)

    def _multiplied(self, node: fx.Node, operands: Sequence[fx.Node]) -> fx.Node:
        """Return the product of rows that are in order."""
        first, second = operands
        given = [self.values[cast(fx.Node, each)] for each in node.args[:2]]
        has_kernel = fits_kernel(*given)
        if node.target is _MULTIPLY:
            op = _KERNEL if has_kernel else partita.sorted_multiply.default
        elif has_kernel:
            op, first = _KERNEL, self._call(_PERMUTE, first, [1, 0])
        else:
            op = partita.sorted_outer.default
        return self._call(op, first, second, self.ends)

    def _taken(self, rows: fx.Node, at: fx.Node) -> fx.Node:
        return self._call(aten.index_select.default, rows, 0, at)

    def _call(self, op: Any, *args: Any) -> fx.Node:
        return self.graph.call_function(op, args)

    def _in_order(self, node: fx.Node) -> fx.Node:
        """Return the rows that a node makes, in the order of their groups."""
        found = self.known.get(node)
        if found is None:
            if self._is_near(node):
                rows = {each: self._in_order(each) for each in self._rows(node)}
                found = self.graph.node_copy(node, lambda each: rows.get(each, each))
            else:
                found = self._taken(node, self.order)
            self.known[node] = found
        return found

    def _is_near(self, node: fx.Node) -> bool:
        """Whether a node works on rows by themselves, some of which are in order."""
        seen, waiting = {node}, self._rows(node)
        while waiting:
            each = waiting.pop()
            if each in self.known:
                return True
            if each not in seen:
                seen.add(each)
                waiting += self._rows(each)
        return False

    def _rows(self, node: fx.Node) -> list[fx.Node]:
        """Return what a node has rows of, if it works on each row by itself."""
        made: Any = self.values.get(node)
        if not self._have_rows(made) or not _works_on_rows(node):
            return []
        operands = [(each, self.values[each]) for each in node.all_input_nodes]
        return [n for n, x in operands if self._have_rows(x) and x.ndim == made.ndim]

    def _have_rows(self, made: Any) -> bool:
        is_tensor = isinstance(made, torch.Tensor) and made.ndim > 0
        return is_tensor and made.shape[0] == self.num_rows


def _works_on_rows(node: fx.Node) -> bool:
    tags = getattr(node.target, "tags", ())
    if torch.Tag.pointwise in tags:
        return torch.Tag.nondeterministic_seeded not in tags
    place = _BY_COLUMNS.get(node.target)
    if place is None:
        return False
    dim = node.args[place] if place < len(node.args) else 0
    return isinstance(dim, int) and dim > 0
