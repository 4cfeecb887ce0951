"""Part what every microbatch runs from what completes the sums over all of them.

Before          %9 (P(sum),) = mm(...);  %9.1 (B,) = box(%9);  return gradient w %9.1
After           %9 (P(sum),) = mm(...);  return gradient w %9
                %h (P(sum),) = held;  %1 (B,) = box(%h, (P(sum),) -> (B,));  return %1

Gradients and the loss are added up in the placement in which a microbatch makes them;
one small program for each boxing brings the sum to where it leaves.

Requires  matched       a use sees the placement its op asked for
Ensures   matched
Keeps     names and types, keys of the boxings
Not here  adding up, and when a program runs (the runtime), how a boxing is lowered
          (localize)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import fx

from partita.compiler.invariants import matched, placed, well_formed
from partita.compiler.ir.boxing import is_box
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    Program,
    Value,
    info,
    type_of,
)
from partita.compiler.plan.document import Document
from partita.compiler.plan.emitted import completing, completing_units
from partita.passes.bring_parameters import Moved, write_boxings


def without_completing(program: Program, plan: Document) -> Program:
    """Return what every microbatch runs of ``program``, boxings inserted."""
    keys = {boxing.key for boxing in completing(plan)}
    if not keys:
        return program
    program = program.copy()
    for node in list(program.calls()):
        if is_box(node) and info(node).key in keys:
            (source,) = node.all_input_nodes
            node.replace_all_uses_with(source)
            program.graph.erase_node(node)
    for invariant in (well_formed, placed, matched):
        invariant(program)
    program.graph_module.recompile()
    return program


def complete_gradients(program: Program, plan: Document) -> Iterator[Program]:
    """Yield the programs that bring what was added up to where it leaves, in order.

    Each takes the sums that are accumulated for the first outputs of its boxings: of
    those of a bucket, or of one.

    Args:
        program: what the plan was made for, boxings inserted.
        plan: the decisions.
    """
    boxed: dict[str, fx.Node] = {
        info(node).key: node for node in program.calls() if is_box(node)
    }
    for unit in completing_units(plan):
        moved: list[Moved] = []
        for boxing in unit:
            node = boxed[boxing.key]
            leaving = tuple(role for made, role in program.results() if made is node)
            name = str(leaving[0])
            fact = replace(info(node), key=name, types=(type_of(Value(node, 0)),))
            entering = InputRole(InputKind.ACCUMULATED, name)
            moved.append(Moved(boxing, fact, entering, leaving))
        yield write_boxings(moved, plan.mesh)
