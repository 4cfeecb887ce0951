"""Cut the last backward of a stage where gradients are whole, to reduce them at once.

Before, backward     %g = mm(...);  %h = mm(...);  return gradient w %g, gradient v %h
Before, completing   %1 = all_reduce(sum w);  %2 = wait(%1);  return gradient w %2
After, phase 0       %g = mm(...);  return gradient w %g
After, begun behind  %1 = all_reduce(sum w);  return saved "1" %1
After, phase 1       %h = mm(...);  return gradient v %h
After, in the end    %2 = wait(saved "1");  return gradient w %2

No rank tells another of a gradient before the last microbatch, and in that, each sum is
sent as soon as it is whole: it passes while the rest of the backward is computed.
Waiting is the reduction's own action. So it is in the first stage, for whose backward
nobody waits; the others send theirs while the stages before them go backward.

Requires  the backward and the programs that complete sums, each localized
Ensures   ranks begin their collectives in one order
Keeps     every value; what is computed and sent
Not here  which sums pass beside (plan/beside.py), adding up (the runtime)
Source    S. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
          Training", VLDB 2020, sections 3.2.3 and 3.2.4: overlap and accumulation
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import cast

from torch import fx

from partita.compiler.ir.local_program import Closing, LocalProgram
from partita.compiler.ir.program import InputKind
from partita.compiler.local_invariants import is_collective
from partita.passes.split_phases import split_behind


def reduce_beside(
    backward: LocalProgram,
    completing: Sequence[LocalProgram],
    beside: Collection[int],
) -> Closing | None:
    """Return the last backward with what begins in it; ``None`` where nothing does.

    Args:
        backward: that makes the gradients.
        completing: what completes sums over microbatches.
        beside: the numbers of those that are to begin as soon as they can.
    """
    order = {node: at for at, node in enumerate(backward.graph_module.graph.nodes)}
    made = _made(backward, completing)
    begun: dict[fx.Node, list[int]] = {}
    halves: dict[int, tuple[LocalProgram, LocalProgram]] = {}
    for number in sorted(beside):
        program = completing[number]
        sums = [r.name for r in program.inputs if r.kind is InputKind.ACCUMULATED]
        nodes = program.graph_module.graph.nodes
        sent = next((node for node in nodes if is_collective(node)), None)
        if sent is None or not all(name in made for name in sums):
            continue  # on this rank there is nothing to send, or it was made before
        whole = max((made[name] for name in sums), key=order.__getitem__)
        begun.setdefault(whole, []).append(number)
        first, second = split_behind(program, [sent])
        halves[number] = first, second
    if not halves:
        return None
    behind = sorted(begun, key=order.__getitem__)
    phases = split_behind(backward, behind)
    return Closing(phases, (*(tuple(begun[node]) for node in behind), ()), halves)


def _made(
    backward: LocalProgram, completing: Sequence[LocalProgram]
) -> dict[str, fx.Node]:
    """Return by output that adds up the call that makes it for one program alone."""
    (output,) = backward.graph_module.graph.find_nodes(op="output")
    results = cast(tuple[fx.Node | None, ...], output.args[0])
    done = {role for program in completing for role in program.outputs}
    found: dict[str, fx.Node] = {}
    shared: set[fx.Node] = set()
    for role, node in zip(backward.outputs, results, strict=True):
        if role.kind.adds_up and node is not None and node.op != "placeholder":
            found[str(role)] = node
            shared |= set() if role in done else {node}  # it leaves as a sum, too
    takers = [
        {found[role.name] for role in program.inputs if role.name in found}
        for program in completing
    ]
    times = Counter(node for own in takers for node in own)
    shared |= {node for node, count in times.items() if count > 1}
    return {name: node for name, node in found.items() if node not in shared}
