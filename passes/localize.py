"""From the logical graph to the graph that one rank runs on its shards.

Before          %1 (S(0),) = reshape(%0 (S(0),), [8, 4]);  %2 (B,) = box(%1, ...)
After, rank 1   %1 = reshape(%0, [4, 4]);  %1.1 = all_gather(%1); %2 = wait(%1.1)

Sizes among the arguments shrink to the shard's, boxings become collectives by the
steps that the plan states, and what depends on where the rank stands enters as
``coordinate`` inputs, so that ranks with shards of equal shapes run equal programs.

Requires  matched       a use sees the placement its op asked for
Ensures   (a LocalProgram is no Program: ``local`` checks its shapes)
Not here  choosing how a boxing is lowered (the plan did)
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.cost.boxing import Step
from partita.compiler.errors import BadPlan
from partita.compiler.ir.boxing import is_box
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    NodeInfo,
    Program,
    Value,
    info,
    op_name,
    operands,
    placement_of,
    set_info,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.localize import localize_args
from partita.compiler.rules.rule import RuleSet
from partita.passes.lower_boxings import emit_steps


def localize(
    program: Program,
    coordinates: tuple[int, ...],
    rules: RuleSet,
    lowerings: Mapping[str, tuple[Step, ...]],
) -> LocalProgram:
    """Return what the rank at ``coordinates`` runs.

    Args:
        program: the logical program, boxings inserted.
        coordinates: where the rank stands on the program's mesh.
        rules: the table, which says what arguments are sizes.
        lowerings: the steps of every boxing, by its key.
    """
    return _Localizer(program, coordinates, rules, lowerings).run()


class _Localizer:
    def __init__(
        self,
        program: Program,
        coordinates: tuple[int, ...],
        rules: RuleSet,
        lowerings: Mapping[str, tuple[Step, ...]],
    ) -> None:
        assert program.mesh is not None
        self.program = program
        self.mesh = program.mesh
        self.coordinates = coordinates
        self.rules = rules
        self.lowerings = lowerings
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}

    def run(self) -> LocalProgram:
        inputs: list[InputRole] = []
        types: list[TensorType | None] = []
        placements: list[Placement | None] = []
        for node, role in self.program.placeholders():
            self._copy(node)
            inputs.append(role)
            types.append(type_of(Value(node, 0)))
            placements.append(placement_of(Value(node, 0)))
        axes = [self.graph.placeholder(f"coordinate_{n}") for n in self.mesh.names]
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                if is_box(node):
                    self.copies[node] = self._lower(node, tuple(axes))
                elif node.target is operator.getitem:
                    self._copy_plain(node)
                else:
                    self._copy(node)
        for name, axis in zip(self.mesh.names, axes, strict=True):
            if axis.users:
                inputs.append(InputRole(InputKind.COORDINATE, name))
                types.append(None)
                placements.append(None)
            else:
                self.graph.erase_node(axis)
        results = self.program.results()
        self.graph.output(tuple(self.copies[node] for node, _ in results))
        self.graph.lint()
        return LocalProgram(
            uncompiled(torch.nn.Module(), self.graph),
            tuple(inputs),
            tuple(role for _, role in results),
            tuple(types),
            tuple(type_of(value_of(node)) for node, _ in results),
            tuple(placements),
            tuple(placement_of(value_of(node)) for node, _ in results),
            self.mesh,
            self.coordinates,
            self.program.constants,
            self.program.in_time,
        )

    def _copy_plain(self, node: fx.Node) -> fx.Node:
        copy = self.graph.node_copy(node, self.copies.__getitem__)
        copy.meta = {}
        self.copies[node] = copy
        return copy

    def _copy(self, node: fx.Node) -> None:
        self.copies[node] = copy_localized(
            self.graph, node, self.copies, self.rules, self.mesh, self.coordinates
        )

    def _lower(self, node: fx.Node, axes: tuple[fx.Node, ...]) -> fx.Node:
        fact = info(node)
        if fact.key not in self.lowerings:
            raise BadPlan(f"boxings: the plan says nothing of {fact.key!r}")
        (value,) = operands(node)
        last = next(iter(reversed(self.graph.nodes)))
        source = self.copies[node.all_input_nodes[0]]
        result, types = emit_steps(
            self.graph,
            source,
            type_of(value),
            self.lowerings[fact.key],
            self.mesh,
            self.coordinates,
            axes,
            fact.stage,
            enters=value.node.op == "placeholder",
        )
        # The last node carries the boxing's info; those before it are its parts.
        parts: list[fx.Node] = []
        for new in reversed(self.graph.nodes):
            if new is last:
                break
            parts.append(new)
        for new in parts:
            made = (types[new],) if new in types else ()
            part = replace(fact, key=part_key(fact.key, new.name), types=made)
            set_info(new, part)
        if result in parts:
            whole = _local_types(fact, self.mesh, self.coordinates)
            set_info(result, replace(fact, types=whole))
        return result


def part_key(boxing: str, name: str) -> str:
    """Return the key of a node that a boxing was lowered to, of all but the last."""
    return f"{boxing}/{name}"


def boxing_of_part(key: str) -> str:
    """Return the key of the boxing whose part has this key.

    >>> boxing_of_part(part_key("mm/0#0 -> (B,)", "all_reduce_1"))
    'mm/0#0 -> (B,)'
    """
    return key.rpartition("/")[0]


def copy_localized(
    graph: fx.Graph,
    node: fx.Node,
    copies: Mapping[fx.Node, fx.Node],
    rules: RuleSet,
    mesh: Mesh,
    coordinates: tuple[int, ...],
) -> fx.Node:
    """Add to ``graph`` the copy of a placeholder or a call that works on shards.

    Args:
        graph: where it is added.
        node: of the logical program, its signature known.
        copies: what stands for its operands.
        rules: the table, which says what arguments are sizes.
        mesh: the ranks.
        coordinates: where the rank stands.
    """
    fact = info(node)
    local = replace(fact, types=_local_types(fact, mesh, coordinates))
    copy = graph.node_copy(node, copies.__getitem__)
    copy.meta = {}
    rule = rules.get(op_name(node)) if node.op == "call_function" else None
    if rule is not None and rule.localize:
        assert fact.signature is not None
        shapes = [
            shard_shape(type_of(value).shape, placement, mesh, coordinates)
            for value, placement in zip(
                operands(node), fact.signature.operands, strict=True
            )
        ]
        results = [None if t is None else t.shape for t in local.types]
        copy.args = localize_args(rule, tuple(copy.args), shapes, results)
    set_info(copy, local)
    return copy


def _local_types(
    fact: NodeInfo, mesh: Mesh, coordinates: tuple[int, ...]
) -> tuple[TensorType | None, ...]:
    assert fact.signature is not None
    return tuple(
        TensorType(shard_shape(type_.shape, placement, mesh, coordinates), type_.dtype)
        if type_ is not None and placement is not None
        else None
        for type_, placement in zip(fact.types, fact.signature.results, strict=True)
    )
