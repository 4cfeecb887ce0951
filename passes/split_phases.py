"""Part what a rank runs of a stage into its forward and its backward.

Before          %h = mm(%x, %w);  return sent-forward %h, gradient %g = mm(%x', %dh)
After, forward  %h = mm(%x, %w);  return sent-forward %h, saved "x'" %x'
After, backward %x' = saved "x'", %dh = received-backward;  return gradient %g

Other stages work between the two, on other microbatches too. What the forward makes and
the backward uses is saved; what enters the stage enters each part that uses it. Where
the schedule asks for it the backward is two: what earlier stages wait for, and the
gradients of the parameters.

Requires  a LocalProgram of one stage
Ensures   nothing is computed in two parts
Keeps     the order of what a part has
Not here  when a part runs (the schedule), what is made again (recompute)
Source    the backward in two: P. Qi et al., "Zero Bubble Pipeline Parallelism", ICLR
          2024, section 2
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.ir.again import phase_of_output
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    OutputKind,
    OutputRole,
    Phase,
    has_info,
    info,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Broadcast, Placement
from partita.compiler.ir.tensor_type import TensorType

Leaving = tuple[OutputRole, fx.Node, TensorType | None, Placement | None]
"""An output: its role, the node, its logical type and its placement."""


def split_phases(local: LocalProgram, num_parts: int) -> tuple[LocalProgram, ...]:
    """Return the forward and the backward of a stage, that in ``num_parts - 1`` parts.

    Args:
        local: what a rank runs of the stage.
        num_parts: 2, or 3 where the gradients of parameters come apart from what
            earlier stages wait for.
    """
    return _split(local, _part_of(local, num_parts), num_parts)


def split_behind(
    local: LocalProgram, calls: Sequence[fx.Node]
) -> tuple[LocalProgram, ...]:
    """Return ``local`` cut behind each of some of its calls, given in their order."""
    number = {node: at for at, node in enumerate(calls, 1)}
    part_of: dict[fx.Node, int] = {}
    part = 0
    for node in local.graph_module.graph.nodes:
        if node.op not in ("call_function", "call_module"):
            continue
        is_item = node.target is operator.getitem
        part_of[node] = part_of[node.all_input_nodes[0]] if is_item else part
        part = number.get(node, part)
    return _split(local, part_of, len(calls) + 1)


def _split(
    local: LocalProgram, part_of: dict[fx.Node, int], num_parts: int
) -> tuple[LocalProgram, ...]:
    """Return the parts, given the one that each call is in."""
    results = _results(local)
    leaving: list[list[Leaving]] = [[] for _ in range(num_parts)]
    for role, node, type_, placement in results:
        part = part_of.get(node, 0 if _is_forward(role) else num_parts - 1)
        leaving[part].append((role, node, type_, placement))
    taken = {role.name for role in local.inputs if role.kind is InputKind.SAVED}
    saved: dict[fx.Node, str] = {}
    for node in local.graph_module.graph.nodes:
        for leaf in node.all_input_nodes:
            own, made = part_of.get(node), part_of.get(leaf)
            if own is not None and made is not None and made < own:
                saved.setdefault(leaf, _other_than(taken, leaf.name))
    for node, name in saved.items():
        role = OutputRole(OutputKind.SAVED, name)
        leaving[part_of[node]].append((role, node, *_held(local, node)))
    return tuple(
        _part(local, part_of, number, leaving[number], saved)
        for number in range(num_parts)
    )


def _other_than(taken: Collection[str], name: str) -> str:
    """Return a name like ``name`` that is not taken."""
    while name in taken:
        name += "_"
    return name


def _is_forward(role: OutputRole) -> bool:
    return phase_of_output(role.kind) is Phase.FORWARD


def _results(local: LocalProgram) -> list[Leaving]:
    (output,) = local.graph_module.graph.find_nodes(op="output")
    return list(
        zip(
            local.outputs,
            output.args[0],
            local.output_types,
            local.output_placements,
            strict=True,
        )
    )


def _part_of(local: LocalProgram, num_parts: int) -> dict[fx.Node, int]:
    """Return by call which part it is in: the first that needs it of those it can."""
    results = _results(local)
    needed = _needed(node for role, node, _, _ in results if _is_forward(role))
    sent = OutputKind.SENT_BACKWARD
    handed = _needed(node for role, node, _, _ in results if role.kind is sent)
    found: dict[fx.Node, int] = {}
    for node in local.graph_module.graph.nodes:
        if node.op not in ("call_function", "call_module"):
            continue
        operands = [found[n] for n in node.all_input_nodes if n in found]
        if node.target is operator.getitem:
            found[node] = operands[0]
        elif node in needed:
            found[node] = 0
        elif info(node).phase is Phase.FORWARD and not any(operands):
            found[node] = 0 if _is_there(local, node) else 1
        else:
            found[node] = 1 if num_parts == 2 or node in handed else 2
    return found


def _is_there(local: LocalProgram, node: fx.Node) -> bool:
    """Whether all that a call is given is there in the forward."""
    entering = local.graph_module.graph.find_nodes(op="placeholder")
    late = {
        entered
        for entered, role in zip(entering, local.inputs, strict=True)
        if role.kind is InputKind.RECEIVED_BACKWARD
    }
    return late.isdisjoint(node.all_input_nodes)


def _needed(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Return ``nodes`` and all that they are made of."""
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def _held(
    local: LocalProgram, node: fx.Node
) -> tuple[TensorType | None, Placement | None]:
    """Return how a saved tensor is known: as this rank's own, which is whole to it.

    Of what lies inside of a boxing nothing may be known.
    """
    value = value_of(node)
    if not has_info(value.node) or not info(value.node).types:
        return None, None
    return type_of(value), Placement((Broadcast(),) * local.mesh.ndim)


def _part(
    local: LocalProgram,
    part_of: dict[fx.Node, int],
    number: int,
    leaving: list[Leaving],
    saved: dict[fx.Node, str],
) -> LocalProgram:
    """Return one of the parts."""
    own = {node for node, part in part_of.items() if part == number}
    used = {leaf for node in own for leaf in node.all_input_nodes}
    used |= {node for _, node, _, _ in leaving}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    inputs: list[tuple[InputRole, TensorType | None, Placement | None]] = []
    entering = local.graph_module.graph.find_nodes(op="placeholder")
    known = zip(local.inputs, local.input_types, local.input_placements, strict=True)
    for node, entry in zip(entering, known, strict=True):
        if node in used:
            copies[node] = graph.node_copy(node)
            inputs.append(entry)
    for node, name in saved.items():
        if node in used and node not in own:
            copies[node] = graph.placeholder(name)
            copies[node].meta = {}
            inputs.append((InputRole(InputKind.SAVED, name), *_held(local, node)))
    for node in local.graph_module.graph.nodes:
        if node in own:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for _, node, _, _ in leaving))
    graph.lint()
    joins = dict(zip(local.outputs, local.in_time.joins, strict=False))
    known_joins = [joins.get(role, Broadcast()) for role, *_ in leaving if joins]
    return replace(
        local,
        graph_module=uncompiled(local.graph_module, graph),
        inputs=tuple(role for role, _, _ in inputs),
        input_types=tuple(type_ for _, type_, _ in inputs),
        input_placements=tuple(placement for _, _, placement in inputs),
        outputs=tuple(role for role, *_ in leaving),
        output_types=tuple(type_ for _, _, type_, _ in leaving),
        output_placements=tuple(placement for *_, placement in leaving),
        in_time=replace(local.in_time, joins=tuple(known_joins)),
    )
