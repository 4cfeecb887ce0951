"""Bring rows in the order of their groups once, for all products of these groups.

A plan has the rows of a mixture of experts as they lie, so that they can be split
(``unsort.py``), and each product finds those of its groups by itself. On a rank they
are brought in order once, and stay so from one product to the next: what works on each
row by itself may do so in any order.

    multiply(x, weight, member)  =  sorted_multiply(x[order], weight, ends)[inverse]
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from partita.compiler.capture import grouped as grouped  # defines ops
from partita.compiler.capture import sorted_groups as sorted_groups  # defines ops
from partita.compiler.capture.torch_private import FakeMode

aten, partita = torch.ops.aten, torch.ops.partita

_MULTIPLY = partita.sorted_multiply.default

_PRODUCTS: dict[Any, tuple[int, Any]] = {
    partita.grouped_multiply.default: (1, _MULTIPLY),
    partita.grouped_outer.default: (2, partita.sorted_outer.default),
}
"""By op how many of its operands, the first, are rows, and the op of rows in order."""

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
        inputs: of ``mode``; what it is changed to is right for their shapes alone.
        mode: in which tensors have no values.
    """
    nodes = [node for node in module.graph.nodes if node.target in _PRODUCTS]
    members = dict.fromkeys([cast(fx.Node, node.args[2]) for node in nodes])
    if not members:
        return
    with torch.no_grad():
        FakeTensorProp(module, mode).propagate_dont_convert_inputs(*inputs)
    values = {node: node.meta.get("val") for node in module.graph.nodes}
    for member in members:
        if values[member].shape[0] > 1:
            own = [node for node in nodes if node.args[2] is member]
            _Sorter(module.graph, values, member).sort(own)
    module.graph.eliminate_dead_code()
    module.graph.lint()
    module.recompile()


class _Sorter:
    """Sorts the rows of one set of groups."""

    def __init__(
        self, graph: fx.Graph, values: dict[fx.Node, Any], member: fx.Node
    ) -> None:
        self.graph = graph
        self.values = values
        self.num_rows = values[member].shape[0]
        self.known: dict[fx.Node, fx.Node] = {}  # in order, by what is as it lies
        with graph.inserting_after(member):
            every = graph.call_function(partita.group_order.default, (member,))
        with graph.inserting_after(every):
            self.order, self.inverse, self.ends = (
                graph.call_function(operator.getitem, (every, at)) for at in range(3)
            )

    def sort(self, products: Sequence[fx.Node]) -> None:
        for node in products:
            num, op = _PRODUCTS[node.target]
            with self.graph.inserting_before(node):
                rows = [self._in_order(cast(fx.Node, each)) for each in node.args[:num]]
                args = (*rows, *node.args[num:2], self.ends)
                made = self.graph.call_function(op, args)
                if op is _MULTIPLY:  # whose result has rows, too
                    in_order, made = made, self._taken(made, self.inverse)
                    self.known[made] = in_order
                    self.values[made] = self.values[node]
            node.replace_all_uses_with(made)
            self.graph.erase_node(node)

    def _taken(self, rows: fx.Node, at: fx.Node) -> fx.Node:
        return self.graph.call_function(aten.index_select.default, (rows, 0, at))

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
