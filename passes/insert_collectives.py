"""Put a boxing on every edge whose two ends disagree on placement.

Before          %2 (P(sum),) = mm(%0 (S(1),), %1 (S(0),));  %3 (B,) = relu(%2 (B,))
After           ...;  %2.1 (B,) = box(%2, (P(sum),) -> (B,));  %3 (B,) = relu(%2.1)

Consumers of one tensor that want the same placement share one boxing, which stands
before the first of them; where the plan makes a boxing again, those of the backward
share a second one. A gradient is boxed right where it is made, so that its reduction
can overlap with the rest of the backward.

Requires  placed        every value has a placement on every axis
Ensures   matched       a use sees the placement its op asked for
          settled       nothing leaves the step partial
Keeps     semantics, names of old nodes, source lines
Not here  choosing placements (search), how a boxing is lowered (lower_boxings)
Source    SBP "boxing": OneFlow, arXiv:2110.15032, section 3.2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import fx

from partita.compiler.errors import BadPlan
from partita.compiler.invariants import matched, placed, settled, well_formed
from partita.compiler.ir.again import again_key, phase_of_output
from partita.compiler.ir.boxing import box
from partita.compiler.ir.program import (
    NodeInfo,
    Phase,
    Program,
    Value,
    info,
    map_operands,
    operands,
    placement_of,
    set_info,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.plan.document import Document, Output, boxing_key


@dataclass(frozen=True)
class InsertCollectives:
    """Carry out the boxings that ``plan`` lists."""

    plan: Document
    name: ClassVar[str] = "insert-collectives"
    requires: ClassVar = (well_formed, placed)
    ensures: ClassVar = (well_formed, placed, matched, settled)

    def run(self, program: Program) -> Program:
        """Return a copy of ``program`` with a boxing per differing edge.

        Raises:
            BadPlan: when the plan does not list a boxing that is needed.
        """
        program = program.copy()
        return _Inserter(program, self.plan).run()


class _Inserter:
    def __init__(self, program: Program, plan: Document) -> None:
        self.program = program
        self.plan = plan
        self.made: dict[str, fx.Node] = {}
        self.listed = {boxing.key for boxing in plan.boxings}
        self.again = set(plan.recompute)

    def run(self) -> Program:
        results = self.program.results()
        for node in list(self.program.calls()):
            signature = info(node).signature
            assert signature is not None
            used = operands(node)

            def placed(
                position: int,
                leaf: fx.Node,
                used: list[Value] = used,
                node: fx.Node = node,
                signature: Signature = signature,
            ) -> fx.Node:
                value = used[position]
                target = signature.operands[position]
                return self._box(value, leaf, target, info(node).phase, node)

            map_operands(node, placed)
        leaving: list[fx.Node] = []
        wanted = {str(output): output.placement for output in self.plan.outputs}
        for node, role in results:
            target = wanted.get(str(Output(role.kind, role.name, None, None)))
            if target is None:
                raise BadPlan(f"outputs: the plan has no {role.kind}:{role.name}")
            phase = phase_of_output(role.kind)
            leaving.append(self._box(value_of(node), node, target, phase, None))
        (output,) = self.program.graph.find_nodes(op="output")
        output.args = (tuple(leaving),)
        self.program.graph_module.recompile()
        return self.program

    def _box(
        self,
        value: Value,
        leaf: fx.Node,
        target: Placement,
        phase: Phase,
        user: fx.Node | None,
    ) -> fx.Node:
        """Return ``value`` as ``target``: itself, or its boxing to that.

        There is one, or one for each half of the step; ``phase`` says which is asked.
        """
        source = placement_of(value)
        if source == target:
            return leaf
        fact = info(value.node)
        key = boxing_key(fact.key, value.index, target)
        if key in self.again and phase is not Phase.FORWARD:
            key = again_key(key)
        if key not in self.made:
            if key not in self.listed:
                raise BadPlan(f"boxings: the plan lists no boxing {key!r}")
            graph = self.program.graph
            where = (
                graph.inserting_before(user) if user else graph.inserting_after(leaf)
            )
            with where:
                new = graph.call_function(box, (leaf, str(source), str(target)))
            new.meta = {}
            # A tensor made forward and re-placed for a backward use is the backward's.
            own = info(user).phase if user else fact.phase
            signature = Signature((source,), (target,))
            types = (type_of(value),)
            set_info(
                new,
                NodeInfo(
                    key, own, types, fact.module, fact.source, signature, fact.stage
                ),
            )
            self.made[key] = new
        return self.made[key]
