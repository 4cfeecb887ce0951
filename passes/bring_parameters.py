"""Write the programs that bring parameters from where they are updated into the step.

Before          parameters.w: storage (B,), optimizer (S(0),)
After           %w (S(0),) = held;  %1 (B,) = box(%w, (S(0),) -> (B,));  return %1

There is one per parameter whose two placements differ, so that those that did not
change can be left alone.

Requires  nothing
Ensures   well_formed, placed, matched
Keeps     names and types of parameters, keys of the boxings
Not here  when a program runs (the runtime), how its boxing is lowered (localize)
Source    "ZeRO": S. Rajbhandari et al., arXiv:1910.02054, section 5
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.invariants import matched, placed, well_formed
from partita.compiler.ir.boxing import box
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputRole,
    NodeInfo,
    OutputKind,
    OutputRole,
    Phase,
    Program,
    info,
    set_info,
)
from partita.compiler.ir.signature import Signature
from partita.compiler.plan.document import Boxing, Document


def bring_parameters(program: Program, plan: Document) -> Iterator[Program]:
    """Yield the programs that ``plan`` lists, in the order of the parameters.

    Each takes a parameter, in the optimizer's placement, and returns it as the step
    receives it, as an output of its name.

    Args:
        program: what the plan was made for, on its mesh.
        plan: the decisions.
    """
    boxings = {boxing.producer: boxing for boxing in plan.boxings if boxing.enters}
    for node, role in program.placeholders():
        if info(node).key in boxings:
            boxing = boxings[info(node).key]
            leaving = (OutputRole(OutputKind.OUTPUT, role.name),)
            yield write_boxing(boxing, info(node), role, leaving, plan.mesh)


def write_boxing(
    boxing: Boxing,
    fact: NodeInfo,
    entering: InputRole,
    leaving: tuple[OutputRole, ...],
    mesh: Mesh,
) -> Program:
    """Return the program that carries out one boxing and nothing else.

    Args:
        boxing: what the plan says.
        fact: what is known of the tensor that is boxed.
        entering: the role in which it enters.
        leaving: those in which it leaves, each of them the same tensor.
        mesh: the ranks.
    """
    graph = fx.Graph()
    held = graph.placeholder("held")
    set_info(held, replace(fact, signature=Signature((), (boxing.source,))))
    made = graph.call_function(box, (held, str(boxing.source), str(boxing.target)))
    signature = Signature((boxing.source,), (boxing.target,))
    own = replace(fact, key=boxing.key, phase=Phase.UPDATE, signature=signature)
    set_info(made, own)
    graph.output((made,) * len(leaving))
    module = uncompiled(torch.nn.Module(), graph)
    program = Program(module, (entering,), leaving, mesh)
    for invariant in (well_formed, placed, matched):
        invariant(program)
    return program
