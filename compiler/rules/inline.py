"""Put the parts of ops in the place of the ops: what a plan lists as ``expanded``."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace

from torch import fx

from partita.compiler.ir.program import (
    NodeInfo,
    Program,
    info,
    operand_nodes,
    set_info,
)
from partita.compiler.rules.expansion import Expansion


def part_key(key: str, part: str) -> str:
    """Return the key of a part of the node ``key``.

    >>> part_key("ln/native_layer_norm/0", "rsqrt/0")
    'ln/native_layer_norm/0~expand/rsqrt/0'
    """
    return f"{key}~expand/{part}"


def part_info(fact: NodeInfo, part: fx.Node) -> NodeInfo:
    """Return what is known of a part of a node that ``fact`` is of."""
    own = info(part)
    return replace(fact, key=part_key(fact.key, own.key), types=own.types)


def inline(program: Program, expansions: Mapping[str, Expansion]) -> Program:
    """Return a copy of ``program`` with nodes replaced by their parts.

    Args:
        program: the logical program.
        expansions: the parts of the nodes to replace, by the nodes' keys.
    """
    program = program.copy()
    for node in list(program.calls()):
        expansion = expansions.get(info(node).key)
        if expansion is not None:
            _replace(node, expansion)
    program.graph.lint()
    program.graph_module.recompile()
    return program


def _replace(node: fx.Node, expansion: Expansion) -> None:
    fact = info(node)
    values: dict[fx.Node, fx.Node] = dict(
        zip(expansion.operands, operand_nodes(node), strict=True)
    )
    with node.graph.inserting_before(node):
        for inner in expansion.graph.nodes:
            if inner.op != "call_function":
                continue
            copy = values[inner] = node.graph.node_copy(inner, values.__getitem__)
            copy.meta = {}
            if inner.target is not operator.getitem:
                set_info(copy, part_info(fact, inner))
    results = [None if r is None else values[r] for r in expansion.results]
    if len(fact.types) == 1 and not any(
        user.target is operator.getitem and user.args[0] is node for user in node.users
    ):
        (result,) = results
        assert result is not None
        node.replace_all_uses_with(result)
    else:
        for user in list(node.users):
            index = user.args[1]
            assert isinstance(index, int)
            result = results[index]
            assert result is not None
            user.replace_all_uses_with(result)
            node.graph.erase_node(user)
    node.graph.erase_node(node)
