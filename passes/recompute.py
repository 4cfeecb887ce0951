"""Make again for backward what the plan does not keep from forward.

Before          %1 = relu(%0);  %2 = exp(%1);  ...;  %9 = mul(%8, %1)
After           %1 = relu(%0);  %2 = exp(%1);  ...;  %1~again = relu(%0)
                %9 = mul(%8, %1~again)

Requires  well_formed   keys are unique
Ensures   well_formed
Keeps     semantics, random draws among them; keys and order of all other nodes
Not here  which nodes are made again (the plan lists them), boxings that are
          (insert-collectives)
Source    arXiv:1604.06174, section 3
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from partita.compiler.errors import BadPlan
from partita.compiler.invariants import well_formed
from partita.compiler.ir.again import make_again, needed_again
from partita.compiler.ir.program import Program, info
from partita.compiler.plan.document import Document


@dataclass(frozen=True)
class Recompute:
    """Clone the nodes that ``plan`` lists under ``recompute`` into the backward."""

    plan: Document
    name: ClassVar[str] = "recompute"
    requires: ClassVar = (well_formed,)
    ensures: ClassVar = (well_formed,)

    def run(self, program: Program) -> Program:
        """Return a copy of ``program`` with the clones in place.

        Raises:
            BadPlan: for a node that backward does not use.
        """
        known = {info(node).key for node in program.calls()}
        listed = [key for key in self.plan.recompute if key in known]
        if not listed:
            return program
        needed = needed_again(program, set(listed))
        for key in listed:
            if key not in needed:
                raise BadPlan(
                    f"recompute: {key!r} is made again for nobody; want what forward "
                    "makes and backward uses"
                )
        return make_again(program, set(needed))
