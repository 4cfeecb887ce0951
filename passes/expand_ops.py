"""Take apart the ops that the plan splits along dims that they reduce or index.

Before          %y (S(1),) = _softmax(%x (S(1),), 1)
After           %m (P(max),) = amax(%x);  %e = exp(sub(%x, %m (B,)));  ...

Requires  well_formed   keys are unique
Ensures   well_formed
Keeps     semantics: the parts compute what the op computes
Not here  which ops are taken apart (the plan lists them), the parts themselves (the
          ``expand`` column of the op's row)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from partita.compiler.errors import BadPlan
from partita.compiler.invariants import well_formed
from partita.compiler.ir.program import Program, info, op_name
from partita.compiler.plan.document import Document
from partita.compiler.rules.calls import call_of
from partita.compiler.rules.expansion import Expansion
from partita.compiler.rules.factors import read
from partita.compiler.rules.inline import inline
from partita.compiler.rules.rule import Call, RuleSet
from partita.compiler.rules.walks import chunked


@dataclass(frozen=True)
class ExpandOps:
    """Replace the ops that ``plan`` lists as expanded by their parts."""

    plan: Document
    rules: RuleSet
    name: ClassVar[str] = "expand-ops"
    requires: ClassVar = (well_formed,)
    ensures: ClassVar = (well_formed,)

    def run(self, program: Program) -> Program:
        """Return a copy of ``program`` with the parts in place.

        Raises:
            BadPlan: when the rules have no parts for an op that the plan expands.
        """
        if not self.plan.expanded:
            return program
        known: dict[Call, Expansion | None] = {}
        expansions: dict[str, Expansion] = {}
        for node in program.calls():
            key = info(node).key
            if key in self.plan.expanded:
                call, rule = call_of(node), self.rules.get(op_name(node))
                if rule is None or rule.expand is None:
                    raise BadPlan(f"expanded.{key}: no rule takes {call.op} apart")
                signature = self.plan.expanded[key].signature
                call = chunked(call, read(rule, call), signature, self.plan.mesh)
                if call not in known:
                    known[call] = Expansion.of(self.rules, rule, call)
                expansion = known[call]
                if expansion is None:
                    raise BadPlan(
                        f"expanded.{key}: {call.op} is not taken apart into chunks as "
                        f"small as those of {signature}"
                    )
                expansions[key] = expansion
        return inline(program, expansions)
