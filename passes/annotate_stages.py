"""Write onto every call the pipeline stage that the plan gives it.

A sum of gradients that several stages make is in no plan, since it is taken apart next;
it gets the first of the stages of its parts.

Requires  well_formed   keys are unique
Ensures   well_formed
Keeps     the graph
Not here  choosing (the plan did), cutting the program (cut_stages)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from partita.compiler.errors import BadPlan
from partita.compiler.invariants import well_formed
from partita.compiler.ir.program import Program, info, operands, update_info


@dataclass(frozen=True)
class AnnotateStages:
    """Carry ``stage_of``, a stage by key, into a program."""

    stage_of: Mapping[str, int]
    name: ClassVar[str] = "annotate-stages"
    requires: ClassVar = (well_formed,)
    ensures: ClassVar = (well_formed,)

    def run(self, program: Program) -> Program:
        """Return a copy of ``program`` whose calls know their stages.

        Raises:
            BadPlan: for a call that no stage has.
        """
        program = program.copy()
        for node in program.calls():
            key = info(node).key
            made = [v.node for v in operands(node) if v.node.op == "call_function"]
            stage = self.stage_of.get(key)
            if stage is None and made:
                stage = min(info(operand).stage for operand in made)
            if stage is None:
                raise BadPlan(f"stages: no stage has {key!r}")
            update_info(node, stage=stage)
        return program
