"""Write the programs that bring parameters from where they are updated into the step.

Before          parameters.w: storage (B,), optimizer (S(0),)
After           %w (S(0),) = held;  %1 (B,) = box(%w, (S(0),) -> (B,));  return %1

There is one per parameter whose two placements differ, so that those that did not
change can be left alone; one for all of a bucket.

Requires  nothing
Ensures   well_formed, placed, matched
Keeps     names and types of parameters, keys of the boxings
Not here  when a program runs (the runtime), how its boxing is lowered (localize)
Source    "ZeRO": S. Rajbhandari et al., arXiv:1910.02054, section 5
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
from partita.compiler.plan.emitted import entering_units


def bring_parameters(program: Program, plan: Document) -> Iterator[Program]:
    """Yield the programs that ``plan`` lists, in the order of the parameters.

    Each takes parameters, in the optimizer's placement, and returns them as the step
    receives them, as outputs of their names: those of a bucket, or one.

    Args:
        program: what the plan was made for, on its mesh.
        plan: the decisions.
    """
    stored = {info(node).key: (node, role) for node, role in program.placeholders()}
    for unit in entering_units(plan):
        moved: list[Moved] = []
        for boxing in unit:
            node, role = stored[boxing.producer]
            leaving = (OutputRole(OutputKind.OUTPUT, role.name),)
            moved.append(Moved(boxing, info(node), role, leaving))
        yield write_boxings(moved, plan.mesh)


@dataclass(frozen=True)
class Moved:
    """A boxing of a tensor that enters and leaves.

    Attributes:
        boxing: what the plan says.
        fact: what is known of the tensor.
        entering: the role in which it enters.
        leaving: those in which it leaves, each of them the same tensor.
    """

    boxing: Boxing
    fact: NodeInfo
    entering: InputRole
    leaving: tuple[OutputRole, ...]


def write_boxings(moved: Sequence[Moved], mesh: Mesh) -> Program:
    """Return the program that carries out some boxings and nothing else."""
    graph = fx.Graph()
    held: list[fx.Node] = []
    for number, one in enumerate(moved):
        held.append(graph.placeholder(f"held_{number}"))
        signature = Signature((), (one.boxing.source,))
        set_info(held[-1], replace(one.fact, signature=signature))
    results: list[fx.Node] = []
    for entering, one in zip(held, moved, strict=True):
        boxing = one.boxing
        ends = boxing.source, boxing.target
        made = graph.call_function(box, (entering, *map(str, ends)))
        signature = Signature(ends[:1], ends[1:])
        own = replace(one.fact, key=boxing.key, phase=Phase.UPDATE, signature=signature)
        set_info(made, own)
        results += [made] * len(one.leaving)
    graph.output(tuple(results))
    module = uncompiled(torch.nn.Module(), graph)
    inputs = tuple(one.entering for one in moved)
    outputs = tuple(role for one in moved for role in one.leaving)
    program = Program(module, inputs, outputs, mesh)
    for invariant in (well_formed, placed, matched):
        invariant(program)
    return program
