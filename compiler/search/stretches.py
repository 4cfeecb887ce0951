"""What of a program matters to the stage that one stretch of its line is.

A search looks at many stretches, and cutting the whole program for each would take as
long for a short one as for a long one. So of what lies elsewhere there stay only the
calls that hand something to the stretch, take something from it or share a parameter
with it, and they stand there without what they are computed from. What is cut from that
for the stretch is what would be cut for it from the whole program.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import fx

from partita.compiler.capture.torch_private import uncompiled
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    OutputKind,
    OutputRole,
    Program,
    info,
    set_info,
    value_of,
)
from partita.compiler.ir.sbp import Broadcast
from partita.compiler.search.cut_line import Line
from partita.compiler.search.stage_of import gradient_sums

_UPDATES = (OutputKind.GRADIENT, OutputKind.MUTATED_BUFFER)


@dataclass(frozen=True)
class Stretch:
    """What matters to a stage: a program, and the stage of each call in it, by its key.

    The stage itself is number ``number`` of ``num_stages``; what lies before it and
    behind it are one stage each.
    """

    program: Program
    stage_of: dict[str, int]
    number: int
    num_stages: int


class Stretches:
    """Tells the stretches of a program that lies along ``line``."""

    def __init__(self, program: Program, line: Line) -> None:
        self.program = program
        self.line = line
        self.order = {node: at for at, node in enumerate(program.graph.nodes)}
        self.sums = gradient_sums(program)
        self.at = {node: line.position[info(node).key] for node in program.calls()}
        self.calls: list[list[fx.Node]] = [[] for _ in line.forward]
        for node, at in self.at.items():
            if node not in self.sums:
                self.calls[at].append(node)
        self.inputs = program.placeholders()
        self.results = program.results()
        self.ends = [self._ends(node) for node, _ in self.results]
        self.users = {
            node: sorted(
                (user for user in node.users if user in self.at),
                key=self.at.__getitem__,
            )
            for node, _ in self.inputs
        }

    def _ends(self, result: fx.Node) -> list[fx.Node]:
        """Return the nodes that make a result; of a sum of gradients, its parts."""
        ahead, found = [value_of(result).node], list[fx.Node]()
        while ahead:
            node = ahead.pop()
            if node in self.sums:
                ahead += (value_of(leaf).node for leaf in node.all_input_nodes)
            else:
                found.append(node)
        return found

    @property
    def homes(self) -> tuple[int, ...]:
        """Where parameters to train are at home: where their gradient is made first."""
        kind = OutputKind.GRADIENT
        parts = (
            [self.at[end] for end in ends if end in self.at]
            for (_, role), ends in zip(self.results, self.ends, strict=True)
            if role.kind is kind
        )
        return tuple(sorted({min(own) for own in parts if own}))

    @property
    def held(self) -> tuple[int, ...]:
        """Where parameters are used first, those too that are not trained."""
        first = {
            self.at[self.users[node][0]]
            for node, role in self.inputs
            if role.kind is InputKind.PARAMETER and self.users[node]
        }
        return tuple(sorted(first))

    def between(self, begin: int, end: int) -> Stretch:
        """Return what matters to the stage from one boundary to another."""
        return _Between(self, begin, end).found()


class _Between:
    def __init__(self, whole: Stretches, begin: int, end: int) -> None:
        self.whole = whole
        self.begin, self.end = begin, end
        self.own = {node for at in range(begin, end) for node in whole.calls[at]}
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}

    def found(self) -> Stretch:
        whole = self.whole
        updated = {
            role.name
            for (_, role), ends in zip(whole.results, whole.ends, strict=True)
            if role.kind in _UPDATES and not self.own.isdisjoint(ends)
        }
        inputs = [
            (node, role)
            for node, role in whole.inputs
            if self._enters(node) or (role.kind.is_state and role.name in updated)
        ]
        entering = {node for node, _ in inputs}
        names = {role.name for _, role in inputs if role.kind.is_state}
        kept = [
            number
            for number, (_, role) in enumerate(whole.results)
            if (role.kind in _UPDATES and role.name in names)
            or not (self.own | entering).isdisjoint(whole.ends[number])
        ]
        results = [whole.results[number] for number in kept]
        sums = set(self._sums_of(node for node, _ in results))
        others = {node for number in kept for node in whole.ends[number]} | sums
        others |= {*self._neighbours(), *self._sharing(entering)}
        others -= self.own | entering
        for node, _ in inputs:
            self._copy(node)
        for node in sorted(self.own | others, key=whole.order.__getitem__):
            if node in self.own or node in sums:
                self._copy(node)
            else:
                self._stand_in(node)
        for node, _ in results:
            self._take(node)
        alone = [node for node in others if node not in sums]
        return self._stretch(inputs, results, alone)

    def _enters(self, node: fx.Node) -> bool:
        """Whether a placeholder is used here; what none uses is in the first stage."""
        users = self.whole.users[node]
        if not users:
            return self.begin == 0
        return any(user in self.own for user in users)

    def _sums_of(self, results: Iterable[fx.Node]) -> Iterator[fx.Node]:
        ahead = [value_of(node).node for node in results]
        while ahead:
            node = ahead.pop()
            if node in self.whole.sums:
                yield node
                ahead += (value_of(leaf).node for leaf in node.all_input_nodes)

    def _neighbours(self) -> Iterator[fx.Node]:
        """Yield the calls that calls of the stretch use, and those that use them."""
        at = self.whole.at
        for node in self.own:
            for leaf in node.all_input_nodes:
                if (maker := value_of(leaf).node) in at:
                    yield maker
            for user in node.users:
                chosen = user.users if user.target is operator.getitem else (user,)
                yield from (each for each in chosen if each in at)

    def _sharing(self, entering: set[fx.Node]) -> Iterator[fx.Node]:
        """Yield of what enters here a user before and one behind, where there are."""
        for node in entering:
            users = self.whole.users[node]
            if users and self.whole.at[users[0]] < self.begin:
                yield users[0]
            if users and self.whole.at[users[-1]] >= self.end:
                yield users[-1]

    def _copy(self, node: fx.Node) -> None:
        copy = self.graph.node_copy(node, self._take)
        copy.meta = {}
        set_info(copy, info(node))
        self.copies[node] = copy

    def _stand_in(self, node: fx.Node) -> None:
        """Let a call stand for itself, without what it takes from elsewhere."""
        taken = tuple(
            self._take(leaf)
            for leaf in node.all_input_nodes
            if value_of(leaf).node in self.copies
        )
        copy = self.graph.create_node("call_function", node.target, taken)
        set_info(copy, info(node))
        self.copies[node] = copy

    def _take(self, leaf: fx.Node) -> fx.Node:
        if leaf not in self.copies:  # a choice among results, made where it is used
            copy = self.graph.node_copy(leaf, self.copies.__getitem__)
            copy.meta = {}
            self.copies[leaf] = copy
        return self.copies[leaf]

    def _stretch(
        self,
        inputs: list[tuple[fx.Node, InputRole]],
        results: list[tuple[fx.Node, OutputRole]],
        alone: list[fx.Node],
    ) -> Stretch:
        program, position = self.whole.program, self.whole.line.position
        outputs = [role for _, role in results]
        outputs += (OutputRole(OutputKind.OUTPUT, info(node).key) for node in alone)
        leaving = [node for node, _ in results] + alone
        self.graph.output(tuple(self.copies[node] for node in leaving))
        joins = dict(zip(program.outputs, program.in_time.joins, strict=False))
        known = tuple(joins.get(role, Broadcast()) for role in outputs if joins)
        excerpt = replace(
            program,
            graph_module=uncompiled(torch.nn.Module(), self.graph),
            inputs=tuple(role for _, role in inputs),
            outputs=tuple(outputs),
            in_time=replace(program.in_time, joins=known),
        )
        before = int(self.begin > 0)
        keys = (info(node).key for node in excerpt.calls())
        stages = {
            key: before + (position[key] >= self.end) - (position[key] < self.begin)
            for key in keys
        }
        num = 1 + before + (self.end < len(self.whole.calls))
        return Stretch(excerpt, stages, before, num)
