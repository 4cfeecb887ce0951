"""Make one product of those that the plan says are one, of parameters side by side.

Before          %2 = permute(%w_0, [1, 0]);  %3 = mm(%x, %2)
                %4 = permute(%w_1, [1, 0]);  %5 = mm(%x, %4)
After           %1 = cat([%w_0, %w_1], 0);  %2 = permute(%1, [1, 0]);  %3 = mm(%x, %2)
                %4 = slice(%3, 1, 0, 256);  %5 = slice(%3, 1, 256, 384)

The product stands where the first of its parts stood. What the plan calls a part is a
view of it. The runtime lets the parameters lie side by side, and then ``cat`` is no op
(runtime/side_by_side.py); elsewhere it is what it says.

Requires  groups of products of one tensor and inputs, transposed
Ensures   one product a group; the same inputs, outputs and collectives
Keeps     semantics but for the order in which a kernel adds up, keys
Not here  choosing what is joined (the plan did), gradients of these products
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.errors import BadPlan
from partita.compiler.ir.joined import LEFT, beside_key, joined_key
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import (
    has_info,
    info,
    op_name,
    set_info,
    type_of,
    value_of,
)
from partita.compiler.ir.tensor_type import TensorType

Groups = Sequence[tuple[str, ...]]

_TRANSPOSED = torch.ops.aten.permute.default


def join_products(local: LocalProgram, groups: Groups) -> LocalProgram:
    """Return ``local`` with one product in place of each group of node keys.

    Raises:
        BadPlan: for keys that are unknown, or of no products of one tensor and
            transposed parameters.
    """
    return _Joiner(local, groups).run() if groups else local


class _Joiner:
    def __init__(self, local: LocalProgram, groups: Groups) -> None:
        self.local = local
        self.groups = groups
        self.members = self._find_members()
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}

    def run(self) -> LocalProgram:
        group_of = {node: i for i, own in enumerate(self.members) for node in own}
        for node in self.local.graph_module.graph.nodes:
            if node in group_of:
                if node not in self.copies:
                    self._emit(group_of[node])
            else:
                copy = self.graph.node_copy(node, self.copies.__getitem__)
                self.copies[node] = copy
        self.graph.lint()
        module = uncompiled(self.local.graph_module, self.graph)
        return replace(self.local, graph_module=module)

    def _find_members(self) -> list[list[fx.Node]]:
        """Return the products of each group, each checked to be like its first."""
        known = {
            info(node).key: node
            for node in self.local.graph_module.graph.nodes
            if node.op == "call_function" and has_info(node)
        }
        found: list[list[fx.Node]] = []
        for index, keys in enumerate(self.groups):
            for key in keys:
                if key not in known:
                    raise BadPlan(f"joined[{index}]: {key!r} is no op of the program")
            members = [known[key] for key in keys]
            for key, node in zip(keys, members, strict=True):
                if not (_is_product(node) and _are_alike(node, members[0])):
                    raise BadPlan(
                        f"joined[{index}]: {key!r} and {keys[0]!r} are no products of "
                        "one tensor and transposed parameters"
                    )
            found.append(members)
        return found

    def _emit(self, group: int) -> None:
        """Write a group's product and its parts."""
        members = self.members[group]
        first = members[0]
        left = LEFT[op_name(first)]
        weights = [cast(fx.Node, _operand(node, left + 1).args[0]) for node in members]
        beside = self._side_by_side(group, left + 1, weights)
        types = [type_of(value_of(node)) for node in members]
        ends = _ends([type_.shape[1] for type_ in types])
        transposed = self.graph.call_function(_TRANSPOSED, (beside, [1, 0]))
        biases = [
            self._side_by_side(group, at, [_operand(node, at) for node in members])
            for at in range(left)
        ]
        operands = (*biases, self.copies[_operand(first, left)], transposed)
        assert callable(first.target)
        product = self.graph.call_function(first.target, operands)
        rows = TensorType((types[0].shape[0], ends[-1]), types[0].dtype)
        whole = type_of(value_of(beside))
        turned = TensorType(whole.shape[::-1], whole.dtype)
        self._tell(transposed, first, f"{joined_key(group)}/transposed", turned)
        self._tell(product, first, joined_key(group), rows)
        for node, start, end in zip(members, [0, *ends], ends, strict=False):
            part = self.graph.call_function(
                torch.ops.aten.slice.Tensor, (product, 1, start, end, 1)
            )
            set_info(part, info(node))
            self.copies[node] = part

    def _side_by_side(
        self, group: int, operand: int, parameters: Sequence[fx.Node]
    ) -> fx.Node:
        """Write what puts parameters one behind another, in a dim of rows."""
        types = [type_of(value_of(node)) for node in parameters]
        rows = sum(type_.shape[0] for type_ in types)
        type_ = TensorType((rows, *types[0].shape[1:]), types[0].dtype)
        given = [self.copies[node] for node in parameters]
        made = self.graph.call_function(torch.ops.aten.cat.default, (given, 0))
        first = self.members[group][0]
        self._tell(made, first, beside_key(group, operand), type_)
        return made

    def _tell(self, node: fx.Node, like: fx.Node, key: str, type_: TensorType) -> None:
        fact = replace(info(like), key=key, types=(type_,), signature=None)
        set_info(node, fact)


def _is_product(node: fx.Node) -> bool:
    """Whether a call is a product of something and a transposed input, biases too."""
    left = LEFT.get(op_name(node))
    if left is None or node.kwargs or len(node.args) != left + 2:
        return False
    weight = _operand(node, left + 1)
    is_transposed = weight.target is _TRANSPOSED and weight.args[1:] == ([1, 0],)
    inputs = [_operand(node, at) for at in range(left)]
    inputs += weight.all_input_nodes
    return is_transposed and all(given.op == "placeholder" for given in inputs)


def _operand(node: fx.Node, position: int) -> fx.Node:
    return cast(fx.Node, node.args[position])


def _are_alike(one: fx.Node, two: fx.Node) -> bool:
    """Whether two products are by one op of one left operand."""
    if one.target is not two.target:
        return False
    left = LEFT[op_name(one)]
    return _are_same(_operand(one, left), _operand(two, left))


def _are_same(one: fx.Node, two: fx.Node) -> bool:
    """Whether two nodes are one, or views of one that are alike."""
    while one is not two:
        is_alike = one.op == two.op == "call_function" and one.target is two.target
        if not is_alike or one.kwargs != two.kwargs or one.args[1:] != two.args[1:]:
            return False
        if not (isinstance(one.args[0], fx.Node) and isinstance(two.args[0], fx.Node)):
            return False
        one, two = one.args[0], two.args[0]
    return True


def _ends(sizes: Sequence[int]) -> list[int]:
    """Return where each of some pieces ends that lie one behind another.

    >>> _ends([256, 128, 128])
    [256, 384, 512]
    """
    return [sum(sizes[: i + 1]) for i in range(len(sizes))]
