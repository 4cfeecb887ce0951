"""Make each of the plan's groups of small ops one call, on one rank's graph.

Before          %1 = mul(%0, 0.5);  %2 = tanh(%0);  %3 = mul(%1, %2);  %4 = neg(%2)
After           %1 = fused_0(%0);  %2 = %1[0];  %3 = %1[1];  %4 = neg(%2)
                with fused_0 a module of its own: mul, tanh, mul

A call stands where the last of its ops stood; what uses its results earlier moves
behind it. Equal groups (those of equal layers) are one module, called several times,
so that they are compiled once.

Requires  groups that no path leaves and enters again
Ensures   one ``call_module`` per group, whose module returns a tuple
Keeps     what is computed; the order of everything else, as far as it can be kept
Not here  choosing groups (search), compiling them (the executor)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import fx
from torch.fx.node import map_arg

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.errors import BadPlan
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import (
    has_info,
    info,
    set_info,
    type_of,
    value_of,
)
from partita.passes.ordering import ordered, units_of

Groups = Sequence[tuple[str, ...]]


def fuse_small_ops(local: LocalProgram, groups: Groups) -> LocalProgram:
    """Return ``local`` with one call in place of each group of node keys.

    Raises:
        BadPlan: for a key that is unknown or in two groups, or groups that have to wait
            for themselves.
    """
    return _Fuser(local, groups).run() if groups else local


class _Fuser:
    def __init__(self, local: LocalProgram, groups: Groups) -> None:
        self.local = local
        self.groups = groups
        self.nodes = list(local.graph_module.graph.nodes)
        self.group_of: dict[fx.Node, int] = self._find_members()
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.root = torch.nn.Module()
        self.names: dict[str, str] = {}  # of modules, by what they compute

    def run(self) -> LocalProgram:
        order, stuck = ordered(units_of(self.nodes, self.group_of))
        if stuck:
            self._refuse(stuck)
        for unit in order:
            if unit[0] in self.group_of:
                self._emit_call(unit)
            else:
                (node,) = unit
                copy = self.graph.node_copy(node, self.copies.__getitem__)
                self.copies[node] = copy
        self.graph.lint()
        return replace(self.local, graph_module=uncompiled(self.root, self.graph))

    def _find_members(self) -> dict[fx.Node, int]:
        """Return the group of each member; a choice among results goes along."""
        keys: dict[str, int] = {}
        for i, group in enumerate(self.groups):
            for key in group:
                if key in keys:
                    raise BadPlan(
                        f"fusion[{i}]: {key!r} is in fusion[{keys[key]}] already"
                    )
                keys[key] = i
        found: dict[fx.Node, int] = {}
        for node in self.nodes:
            if node.op == "call_function" and has_info(node) and info(node).key in keys:
                found[node] = keys.pop(info(node).key)
            elif node.target is operator.getitem and node.args[0] in found:
                found[node] = found[cast(fx.Node, node.args[0])]
        if keys:
            key, group = next(iter(keys.items()))
            raise BadPlan(f"fusion[{group}]: {key!r} is no op of the program")
        return found

    def _refuse(self, stuck: list[list[fx.Node]]) -> None:
        group = next(
            self.group_of[unit[0]] for unit in stuck if unit[0] in self.group_of
        )
        raise BadPlan(
            f"fusion[{group}]: {', '.join(self.groups[group])} cannot be one op: a "
            "path, perhaps through a boxing or another group, leaves and re-enters it"
        )

    def _emit_call(self, unit: list[fx.Node]) -> None:
        inside = set(unit)
        entering = list(
            dict.fromkeys(
                n for node in unit for n in node.all_input_nodes if n not in inside
            )
        )
        leaving = [node for node in unit if not inside.issuperset(node.users)]
        region = _region(unit, entering, leaving)
        name = self._name(region, entering)
        call = self.graph.call_module(name, tuple(self.copies[n] for n in entering))
        group = self.group_of[unit[0]]
        types = tuple(type_of(value_of(node)) for node in leaving)
        first = replace(info(unit[0]), types=types, signature=None)
        set_info(call, replace(first, key=f"fusion[{group}]"))
        for position, node in enumerate(leaving):
            self.copies[node] = self.graph.call_function(
                operator.getitem, (call, position)
            )

    def _name(self, region: fx.Graph, entering: list[fx.Node]) -> str:
        """Return the name of the module that runs ``region``, made where none does."""
        types = [str(type_of(value_of(node))) for node in entering]
        computes = f"{', '.join(types)}\n{region}"
        if computes not in self.names:
            name = self.names[computes] = f"fused_{len(self.names)}"
            self.root.add_module(name, uncompiled(torch.nn.Module(), region))
        return self.names[computes]


def _region(
    unit: list[fx.Node], entering: list[fx.Node], leaving: list[fx.Node]
) -> fx.Graph:
    """Return a graph of the nodes of ``unit`` alone, its names the same for all."""
    graph = fx.Graph()
    values: dict[fx.Node, fx.Node] = {}
    for position, node in enumerate(entering):
        values[node] = graph.placeholder(f"input_{position}")
    for position, node in enumerate(unit):
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        values[node] = graph.create_node(
            node.op, node.target, args, kwargs, name=f"op_{position}"
        )
        if has_info(node):
            set_info(values[node], info(node))
    graph.output(tuple(values[node] for node in leaving))
    return graph
