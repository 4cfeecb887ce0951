"""Make a tensor of a number that is added to a number which was computed.

Before          %2: f32[] = sub(1, %1: f32[])
After           %n: f32[] = full([], 1);  %2: f32[] = sub(%n, %1)

A sum of tensors can add up over parts of the batch where each adds its share; a number
among the arguments has no placement, so nobody could say what share of it is added.

Requires  well_formed   keys are unique
Ensures   well_formed
Keeps     what is computed, keys, roles; numbers that are added to larger tensors
Not here  what adds up over the microbatches (compiler/search/in_time.py)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import fx

from partita.compiler.invariants import well_formed
from partita.compiler.ir.program import Program, info, set_info, type_of, value_of

aten = torch.ops.aten

_SUMS: dict[Any, Any] = {
    aten.add.Scalar: aten.add.Tensor,
    aten.add.Tensor: aten.add.Tensor,
    aten.sub.Scalar: aten.sub.Tensor,
    aten.sub.Tensor: aten.sub.Tensor,
}


@dataclass(frozen=True)
class SeparateNumbers:
    """Turn numbers that are added to computed numbers into tensors."""

    name: ClassVar[str] = "separate-numbers"
    requires: ClassVar = (well_formed,)
    ensures: ClassVar = (well_formed,)

    def run(self, program: Program) -> Program:
        """Return a copy of ``program`` whose sums of numbers are of tensors."""
        program = program.copy()
        for node in program.calls():
            if node.target in _SUMS and len(node.args) == 2:
                for position in (0, 1):
                    _separate(program, node, position)
        return program


def _separate(program: Program, node: fx.Node, position: int) -> None:
    """Make a tensor of an argument of a sum, if it is a number other than zero."""
    type_ = type_of(value_of(node))
    number = node.args[position]
    if type_.ndim or not type_.dtype.is_floating_point or isinstance(number, fx.Node):
        return
    if not number:  # adds nothing: the sum adds up as it is
        return
    places: dict[str, Any] = {"dtype": type_.dtype, "device": torch.device("cpu")}
    with program.graph.inserting_before(node):
        made = program.graph.call_function(aten.full.default, ([], number), places)
    made.meta = {}
    fact = info(node)
    set_info(made, replace(fact, key=f"{fact.key}#{position}", types=(type_,)))
    node.target = _SUMS[node.target]
    node.update_arg(position, made)
