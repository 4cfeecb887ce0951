"""On which pipeline stage every call runs, once the forward's are known.

Stages are cut in the forward; the backward follows it. What is differentiated runs on
the stage of the call that it is the backward of, and never later than what hands it a
gradient: gradients go from the last stage to the first. The other calls of the
backward, such as masks and transposes of what the forward made, run where they are
used first in the backward, which is the latest of their users' stages; so they never
hold up a gradient. A call of the backward may use what any stage of the forward made.

Everything here is a least or a greatest of other stages. So the stage of a call is the
stage of one forward call, the same one wherever the cuts lie: given every forward call
as a stage of its own, ``stage_of`` says which (cut_line.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import fx

from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Phase,
    Program,
    Value,
    info,
    op_name,
    operands,
    value_of,
)


def stage_of(program: Program, of_forward: Mapping[str, int]) -> dict[str, int]:
    """Return the stage of every call by its key.

    A sum of gradients that several stages make runs on the first of them; those of a
    parameter are taken apart elsewhere (``gradient_sums``).

    Args:
        program: the joint program, nothing in it made again yet.
        of_forward: the stage of every call of the forward, by its key; a user is never
            on an earlier stage than what it uses.
    """
    return _Stages(program, of_forward).found()


def gradient_sums(program: Program) -> frozenset[fx.Node]:
    """Return the calls that do nothing but add up gradients of one parameter."""
    found: set[fx.Node] = set()
    ends = program.results()
    ahead = [value_of(n) for n, role in ends if role.kind is OutputKind.GRADIENT]
    while ahead:
        node = ahead.pop().node
        if node not in found and _is_sum(node):
            found.add(node)
            ahead += operands(node)
    return frozenset(found)


def _is_sum(node: fx.Node) -> bool:
    used = operands(node)
    is_add = op_name(node) == "aten.add.Tensor" and len(used) == 2
    return is_add and not node.kwargs and all(map(_is_backward, used))


def _is_backward(value: Value) -> bool:
    return is_call(value) and info(value.node).phase is not Phase.FORWARD


def is_call(value: Value) -> bool:
    """Whether a call makes ``value``."""
    return value.node.op == "call_function"


class _Stages:
    def __init__(self, program: Program, of_forward: Mapping[str, int]) -> None:
        self.of_forward = of_forward
        self.backward = [n for n in program.calls() if _is_backward(Value(n, 0))]
        self.last = max(of_forward.values(), default=0)
        self.of_taken_apart = _last_parts(of_forward)
        entering = program.placeholders()
        kind = InputKind.LOSS_SCALE
        differentiated = {node for node, role in entering if role.kind is kind}
        for node in self.backward:
            if any(v.node in differentiated for v in operands(node)):
                differentiated.add(node)
        self.differentiated = differentiated
        self.stages: dict[fx.Node, int] = {}

    def found(self) -> dict[str, int]:
        for node in self.backward:
            if node in self.differentiated:
                least = min(self._handed(node), default=self.last)
                self.stages[node] = min(least, self._home(node, least))
        users = self._users()
        for node in reversed(self.backward):
            if node not in self.differentiated:
                latest = max((self.stages[user] for user in users[node]), default=0)
                self.stages[node] = latest if users[node] else self._home(node, 0)
        return {**self.of_forward, **{info(n).key: s for n, s in self.stages.items()}}

    def _handed(self, node: fx.Node) -> Iterator[int]:
        """Yield the stages that hand it gradients."""
        for value in operands(node):
            if value.node in self.stages:
                yield self.stages[value.node]

    def _home(self, node: fx.Node, unknown: int) -> int:
        """Return the stage of the call that this one is the backward of."""
        forward = info(node).key.partition("~grad")[0]
        found = self.of_forward.get(forward)
        return self.of_taken_apart.get(forward, unknown) if found is None else found

    def _users(self) -> dict[fx.Node, list[fx.Node]]:
        """Return who in the backward uses what the backward made."""
        users: dict[fx.Node, list[fx.Node]] = {node: [] for node in self.backward}
        for node in self.backward:
            for value in operands(node):
                if value.node in users:
                    users[value.node].append(node)
        return users


def _last_parts(of_forward: Mapping[str, int]) -> dict[str, int]:
    """Return the latest stage among the parts of calls that were taken apart."""
    found: dict[str, int] = {}
    for key, stage in of_forward.items():
        whole = key.rpartition("/")[0]
        while whole:
            found[whole] = max(found.get(whole, stage), stage)
            whole = whole.rpartition("/")[0]
    return found
