"""Write the plan's signatures onto the nodes of a program.

Before          %h: f32[8, 64] = addmm(%b, %x, %w)
After           %h: f32[8, 64] (S(1),) = addmm(%b (S(0),), %x (B,), %w (S(1),))

Requires  well_formed   keys are unique
Ensures   placed        every value has a legal placement
Keeps     the graph
Not here  choosing (the plan did), making edges agree (insert-collectives)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from partita.compiler.errors import BadPlan
from partita.compiler.invariants import placed, well_formed
from partita.compiler.ir.program import Program, info, op_name, update_info
from partita.compiler.plan.document import Document
from partita.compiler.rules.calls import UNKNOWN, call_of, rule_and_factors
from partita.compiler.rules.rule import RuleSet
from partita.compiler.rules.segments import segments_in
from partita.compiler.rules.signatures import axis_options, is_legal

_OWN_RULES = (
    "; there is none in the table: give those that the plan was made with, "
    "rules=... or --rules"
)


@dataclass(frozen=True)
class AnnotatePlacements:
    """Carry the placements of ``plan`` into a program."""

    plan: Document
    rules: RuleSet
    name: ClassVar[str] = "annotate-placements"
    requires: ClassVar = (well_formed,)
    ensures: ClassVar = (well_formed, placed)

    def run(self, program: Program) -> Program:
        """Return a copy of ``program`` with signatures on the plan's mesh.

        Raises:
            BadPlan: when the plan says nothing of a node, or what no rule allows.
        """
        program = program.copy().with_mesh(self.plan.mesh)
        for node in program.nodes():
            decided = self.plan.nodes.get(info(node).key)
            if decided is None:
                raise BadPlan(f"nodes: the plan has no {info(node).key!r}")
            update_info(node, signature=decided.signature, stage=decided.stage)
        self._check_rules(program)
        return program

    def _check_rules(self, program: Program) -> None:
        """Check that the table allows every signature; a plan may be hand-made."""
        for node in program.calls():
            rule, found = rule_and_factors(self.rules, call_of(node))
            signature = info(node).signature
            assert signature is not None
            options = axis_options(rule, found, segments_in(signature, found))
            if not is_legal(signature, found, options, self.plan.mesh):
                hint = "" if rule is not UNKNOWN else _OWN_RULES
                raise BadPlan(
                    f"nodes.{info(node).key}.signature: no rule of {op_name(node)} "
                    f"allows {signature}{hint}"
                )
