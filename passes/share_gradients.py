"""Take apart the gradients that several stages make together.

Before          %s = add(%a, %b);  return gradient w %s          %a of stage 0, %b of 2
After           return gradient w %a, shared-gradient "w of stage 2" %b

A parameter that several stages use has a gradient of parts, one from each. What a
stage makes adds up there over the microbatches, and goes to the parameter's home once;
the sum of both within a microbatch would be sent with each of them. The home is the
first stage that makes a part.

Requires  well_formed   keys are unique
Ensures   well_formed
Keeps     what is no sum of parts of several stages
Not here  which stage a call is of (annotate-stages), adding the parts up (the runtime)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import fx

from partita.compiler.invariants import well_formed
from partita.compiler.ir.program import (
    OutputKind,
    OutputRole,
    Program,
    info,
    set_info,
    type_of,
    value_of,
)
from partita.compiler.ir.stages import at_stage, shared_gradient_name

_ADD = torch.ops.aten.add.Tensor


@dataclass(frozen=True)
class ShareGradients:
    """Take gradients apart by the stages of the calls that make them."""

    name: ClassVar[str] = "share-gradients"
    requires: ClassVar = (well_formed,)
    ensures: ClassVar = (well_formed,)

    def run(self, program: Program) -> Program:
        """Return a copy of ``program`` whose gradients each are made in one stage."""
        program = program.copy()
        (output,) = program.graph.find_nodes(op="output")
        leaving: list[fx.Node] = []
        roles: list[OutputRole] = []
        joins = dict(zip(program.outputs, program.in_time.joins, strict=False))
        for node, role in program.results():
            parts = {0: node}
            if role.kind is OutputKind.GRADIENT:
                parts = self._parts(program, node)
            home = min(parts)
            for stage, part in sorted(parts.items()):
                own = role
                if stage != home:
                    name = shared_gradient_name(role.name, stage)
                    own = OutputRole(OutputKind.SHARED_GRADIENT, name)
                    if role in joins:
                        joins[own] = joins[role]
                leaving.append(part)
                roles.append(own)
        output.args = (tuple(leaving),)
        program.graph.eliminate_dead_code()
        program.graph_module.recompile()
        known = tuple(joins[role] for role in roles if role in joins)
        in_time = replace(program.in_time, joins=known)
        return replace(program, outputs=tuple(roles), in_time=in_time)

    def _parts(self, program: Program, node: fx.Node) -> dict[int, fx.Node]:
        """Return by stage the part that it makes of a gradient."""
        found: dict[int, list[fx.Node]] = {}
        for addend in self._addends(node):
            found.setdefault(_stage(addend), []).append(addend)
        if len(found) == 1:
            return {stage: node for stage in found}
        return {
            stage: self._sum(program, node, stage, addends)
            for stage, addends in found.items()
        }

    def _addends(self, node: fx.Node) -> list[fx.Node]:
        """Return the largest parts of a sum that one stage makes each."""
        sides = node.all_input_nodes
        is_sum = node.target is _ADD and len(sides) == 2 and not node.kwargs
        if not is_sum or len(node.users) != 1 or any(_is_other(s, node) for s in sides):
            return [node]
        found = [addend for side in sides for addend in self._addends(side)]
        return [node] if len({_stage(addend) for addend in found}) == 1 else found

    def _sum(
        self, program: Program, whole: fx.Node, stage: int, addends: list[fx.Node]
    ) -> fx.Node:
        total = addends[0]
        for number, addend in enumerate(addends[1:]):
            with program.graph.inserting_after(max(total, addend)):
                total = program.graph.call_function(_ADD, (total, addend))
            total.meta = {}
            key = at_stage(f"{info(whole).key}.{number}", stage)
            set_info(total, replace(info(whole), key=key, stage=stage))
        return total


def _stage(node: fx.Node) -> int:
    return info(value_of(node).node).stage


def _is_other(side: fx.Node, total: fx.Node) -> bool:
    """Whether a side of a sum is of another shape, and is broadcast to it."""
    return type_of(value_of(side)) != type_of(value_of(total))
