"""What plans tell of what their nodes could have been, which no comparison needs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.ir.program import OutputRole
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.document import Node
from partita.compiler.plan.plan import Plan
from partita.compiler.search.alternatives import Alternatives, Around
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice, made_placement
from partita.compiler.search.state import States


class Told:
    """What nodes are told of their other choices, the best ones, with their prices."""

    def __init__(self, posed: Posed, choices: Sequence[int], most: int) -> None:
        self.posed = posed
        self.choices = choices
        self.most = most
        self._prices = Alternatives(posed.problem, choices) if most else None
        self._figures = _Figures(posed)
        self._known: dict[Around, tuple[Alternative, ...]] = {}

    def place(self, index: int) -> Hashable:
        """Return what nodes share that choose alike and are told alike."""
        if self._prices is None:
            return id(self.posed.problem.nodes[index].choices), self.choices[index]
        return self._prices.place(index)

    def of_node(self, index: int) -> tuple[Alternative, ...]:
        """Return the alternatives of a node; nodes of equal surroundings share them."""
        if self._prices is None:
            return ()
        around = self._prices.around(index)
        found = self._known.get(around)
        if found is None:
            found = self._known[around] = self._find(self._prices, index)
        return found

    def _find(self, prices: Alternatives, index: int) -> tuple[Alternative, ...]:
        choices = self.posed.problem.nodes[index].choices
        chosen = self.choices[index]
        broken_s = choices[chosen].broken_s
        found = sorted(
            (delta - choices[other].broken_s + broken_s, other)
            for other, delta in prices.of_node(index)
            if other != chosen and delta < float("inf")
        )
        best = found[: self.most]
        others = [other for _, other in best]
        told = prices.parts_of(index, others, self._figures)
        return tuple(
            Alternative(
                choices[other].signature,
                seconds,
                parts.compute_s,
                parts.bytes,
                parts.held_bytes,
                choices[other].held,
            )
            for (seconds, other), parts in zip(best, told, strict=True)
        )


@dataclass(frozen=True)
class _Figures:
    """What of the choices of a posed problem is no part of their prices by itself."""

    posed: Posed

    @cached_property
    def _states(self) -> States:
        return States(self.posed, self.posed.optimizer)

    def box_bytes(self, type_: TensorType, made: Placement, want: Placement) -> int:
        mesh, hardware = self.posed.problem.mesh, self.posed.candidates.hardware
        return cheapest_steps(type_, made, want, mesh, hardware).bytes

    def ways(self, index: int, choice: Choice) -> tuple[float, int]:
        if choice.held is None:
            return 0.0, 0
        mesh, hardware = self.posed.problem.mesh, self.posed.candidates.hardware
        (type_,) = self.posed.problem.nodes[index].result_types
        assert type_ is not None
        stored = made_placement(choice, 0)
        ways = choice.held.ways(type_, stored, mesh, hardware)
        return sum(way.seconds for way in ways), sum(way.bytes for way in ways)

    def held_bytes(self, index: int, choice: Choice) -> int:
        if choice.held is not None:
            return self._states.of(index, choice).num_bytes
        mesh, node = self.posed.problem.mesh, self.posed.problem.nodes[index]
        return sum(
            held_bytes(type_, made_placement(choice, result), mesh)
            for result, type_ in enumerate(node.result_types)
            if type_ is not None
        )


def with_alternatives(
    draft: Plan, posed: Posed, choices: Sequence[int], most: int
) -> Plan:
    """Return a draft with what its nodes are told of their other choices.

    Args:
        draft: as ``decide.draft`` makes it.
        posed: the problem that was solved.
        choices: a choice per node of it, those that the draft was made of.
        most: of its other choices each node is told of.
    """
    told = _told_of(posed, choices, most)
    nodes, expanded = dict(draft.nodes), dict(draft.expanded)
    for key, others in told.items():
        if key in expanded:
            expanded[key] = replace(expanded[key], alternatives=others)
        elif others:
            nodes[key] = _told(nodes[key], others)
    return replace(draft, nodes=nodes, expanded=expanded)


def _told(node: Node, others: tuple[Alternative, ...]) -> Node:
    """Return a node with its alternatives; ``replace`` would be slow for all."""
    return Node(
        node.op,
        node.types,
        node.signature,
        node.operands,
        node.constants,
        node.stage,
        node.phase,
        node.module,
        node.source,
        node.role,
        node.seconds,
        node.flops,
        node.ways,
        others,
    )


def _told_of(
    posed: Posed, choices: Sequence[int], most_alternatives: int
) -> dict[str, tuple[Alternative, ...]]:
    """Return what nodes are told of their other choices, by node of the problem."""
    told = Told(posed, choices, most_alternatives)
    known: dict[Hashable, tuple[Alternative, ...]] = {}
    found: dict[str, tuple[Alternative, ...]] = {}
    for index, node in enumerate(posed.problem.nodes):
        if not isinstance(posed.items[index], OutputRole):
            place = told.place(index)
            if place not in known:
                known[place] = told.of_node(index)
            found[node.key] = known[place]
    return found
