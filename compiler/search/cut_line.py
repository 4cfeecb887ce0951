"""A joint program laid out along a line that pipeline stages can be cut from.

The line is the calls of the forward in program order. Calls that have no part in the
batch (positions, casts and transposes of parameters, draws of random numbers) hang on
placeholders alone, which every stage has; they lie right before their first user, so
that no boundary comes between. Calls of the backward lie where ``stage_of`` puts them.

What crosses a boundary are the distinct tensors made on one side of it and used on the
other: what the forward made, on its way to later stages; gradients, on their way to
earlier ones. A tensor that skips stages crosses every boundary on its way, so bytes are
a property of the boundary, whatever other cuts there are. What enters the program
crosses nowhere, and neither do the addends of a parameter's gradient: each stage adds
up its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from torch import fx

from partita.compiler.ir.program import (
    InputKind,
    Phase,
    Program,
    Value,
    info,
    operands,
)
from partita.compiler.search.stage_of import gradient_sums, is_call, stage_of


@dataclass(frozen=True, slots=True)
class Line:
    """What lies where; boundary i is in front of the i-th call of the forward.

    Attributes:
        forward: the keys of the forward's calls, in their order along the line.
        position: where every call of the program lies, by its key.
        hop_bytes: what crosses each boundary, there and back; 0 at either end.
        used: at each position, the parameters that calls there use.
    """

    forward: tuple[str, ...]
    position: dict[str, int]
    hop_bytes: tuple[int, ...]
    used: tuple[frozenset[str], ...]

    @staticmethod
    def of(program: Program) -> Line:
        """Lay out ``program``, in which nothing is made again yet."""
        forward = _in_order(program)
        position = stage_of(program, {key: i for i, key in enumerate(forward)})
        used: list[set[str]] = [set() for _ in forward]
        kind = InputKind.PARAMETER
        parameters = {n: r.name for n, r in program.placeholders() if r.kind is kind}
        for node in program.calls():
            names = (parameters.get(v.node) for v in operands(node))
            used[position[info(node).key]].update(n for n in names if n is not None)
        crossing = _crossing(program, position, len(forward))
        return Line(forward, position, crossing, tuple(map(frozenset, used)))


def _in_order(program: Program) -> tuple[str, ...]:
    """Return the keys of the forward; what is apart from the batch waits for its user.

    What it waits for is never before its maker: a call that waits uses only what enters
    and what waits, too, no later than it does itself.
    """
    calls = [n for n in program.calls() if info(n).phase is Phase.FORWARD]
    batch = {n for n, role in program.placeholders() if role.kind is InputKind.INPUT}
    users: dict[fx.Node, list[fx.Node]] = {node: [] for node in calls}
    for node in calls:
        for value in operands(node):
            if value.node in batch:
                batch.add(node)
            if value.node in users:
                users[value.node].append(node)
    waits_for: dict[fx.Node, int] = {}
    for index, node in reversed([*enumerate(calls)]):
        waits_for[node] = index
        if node not in batch and users[node]:
            waits_for[node] = min(waits_for[user] for user in users[node])
    return tuple(info(n).key for n in sorted(calls, key=waits_for.__getitem__))


def _crossing(
    program: Program, position: dict[str, int], count: int
) -> tuple[int, ...]:
    first: dict[Value, int] = {}
    last: dict[Value, int] = {}
    sums = gradient_sums(program)
    for node in program.calls():
        if node not in sums:
            at = position[info(node).key]
            for value in filter(is_call, operands(node)):
                first[value] = min(first.get(value, at), at)
                last[value] = max(last.get(value, at), at)
    change = [0] * (count + 2)
    for value, at in first.items():
        made = info(value.node)
        type = made.types[value.index]
        num_bytes = 0 if type is None else type.num_bytes
        change[min(at, position[made.key]) + 1] += num_bytes
        change[max(last[value], position[made.key]) + 1] -= num_bytes
    return tuple(accumulate(change[:-1]))
