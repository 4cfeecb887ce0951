"""Put what is emitted at once in an order in which each comes behind what it needs."""

from __future__ import annotations

import heapq
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.ir.local_program import LocalProgram

Units = list[list[fx.Node]]
"""Nodes that are emitted at once, by unit."""


def units_of(nodes: Sequence[fx.Node], group_of: Mapping[fx.Node, int]) -> Units:
    """Return each node by itself, those of a group together where its last stood."""
    members: dict[int, list[fx.Node]] = {}
    for node, group in group_of.items():
        members.setdefault(group, []).append(node)
    units: Units = []
    for node in nodes:
        group = group_of.get(node)
        if group is None:
            units.append([node])
        elif node is members[group][-1]:
            units.append(members[group])
    return units


def ordered(units: Units) -> tuple[Units, Units]:
    """Return the units, each behind those it needs, else in the order given.

    The order is the same on every rank: it depends on which boxings and ops need which,
    never on how a boxing is lowered.

    Args:
        units: all nodes of a graph, the last the output.

    Returns:
        The units in order, and those that would have to wait for themselves.
    """
    at = {node: i for i, unit in enumerate(units) for node in unit}
    needs = [
        {at[n] for node in unit for n in node.all_input_nodes} - {i}
        for i, unit in enumerate(units)
    ]
    needs[-1] = set(range(len(units) - 1))  # nothing comes after the output
    users: list[list[int]] = [[] for _ in units]
    for i, needed in enumerate(needs):
        for other in needed:
            users[other].append(i)
    waits_for = [len(needed) for needed in needs]
    ready = [i for i, num in enumerate(waits_for) if num == 0]
    order: Units = []
    while ready:
        i = heapq.heappop(ready)
        order.append(units[i])
        for user in users[i]:
            waits_for[user] -= 1
            if waits_for[user] == 0:
                heapq.heappush(ready, user)
    return order, [units[i] for i, num in enumerate(waits_for) if num]


def missing(node: fx.Node, known: Container[fx.Node]) -> list[fx.Node]:
    """Return what of a node and of all it is made of is not known yet, in order."""
    found: dict[fx.Node, None] = {}
    waiting = [node]
    while waiting:
        last = waiting[-1]
        inputs = [n for n in last.all_input_nodes if n not in known and n not in found]
        if inputs:
            waiting += inputs
        else:
            found[waiting.pop()] = None
    return list(found)


def in_order(local: LocalProgram, nodes: Sequence[fx.Node]) -> LocalProgram:
    """Return ``local`` with its nodes in another order, itself where that is its own.

    Args:
        local: its graph is copied where a node has another place.
        nodes: all of its graph, each behind what it needs.
    """
    if list(local.graph_module.graph.nodes) == list(nodes):
        return local
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.lint()
    return replace(local, graph_module=uncompiled(local.graph_module, graph))
