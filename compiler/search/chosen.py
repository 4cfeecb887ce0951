"""What an assignment chose for every node of the program that will run.

That program has the parts of an op in its place wherever the signature taken asks for
the op to be taken apart.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import fx

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.ir.again import again_key, make_again, phase_of_output
from partita.compiler.ir.program import (
    OutputRole,
    Phase,
    Program,
    Value,
    info,
    op_name,
    operands,
    value_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.document import Expanded
from partita.compiler.rules.expansion import Expansion
from partita.compiler.rules.inline import inline, part_key
from partita.compiler.search.alternatives import Alternatives, Around
from partita.compiler.search.candidates import Priced, flops_of
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice


@dataclass(frozen=True)
class ChosenNode:
    """What one node does: ``flops`` of all ranks together, split in ``ways`` parts."""

    signature: Signature
    seconds: float
    flops: float = 0.0
    ways: int = 1
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class Chosen:
    """The program that will run, its nodes' choices, and how outputs leave."""

    program: Program
    nodes: Mapping[fx.Node, ChosenNode]
    expanded: Mapping[str, Expanded]
    outputs: Mapping[OutputRole, Placement]

    @cached_property
    def used(self) -> dict[fx.Node, list[Value]]:
        """The operands of every node."""
        return {node: operands(node) for node in self.program.nodes()}

    def consumers(self) -> dict[tuple[Value, Placement], dict[str, Phase]]:
        """Return who wants each tensor in each placement, by key, and when.

        An output goes by its printed form, ``gradient:h.0.weight``.
        """
        found: dict[tuple[Value, Placement], dict[str, Phase]] = {}
        for node in self.program.calls():
            wanted, fact = self.nodes[node].signature.operands, info(node)
            for asked in zip(self.used[node], wanted, strict=True):
                users = found.get(asked)
                if users is None:
                    users = found[asked] = {}
                users[fact.key] = fact.phase
        for node, role in self.program.results():
            users = found.setdefault((value_of(node), self.outputs[role]), {})
            users[f"{role.kind}:{role.name}"] = phase_of_output(role.kind)
        return found

    def with_again(self, keys: Collection[str]) -> Chosen:
        """Return this with the nodes ``keys`` made again for the backward."""
        if not keys:
            return self
        program = make_again(self.program, keys)
        known = {info(node).key: chosen for node, chosen in self.nodes.items()}
        clones = {again_key(key): replace(known[key], alternatives=()) for key in keys}
        known |= clones
        nodes = {node: known[info(node).key] for node in program.nodes()}
        return replace(self, program=program, nodes=nodes)


def read_choices(
    program: Program,
    posed: Posed,
    choices: Sequence[int],
    most_alternatives: int = 0,
) -> Chosen:
    """Return what ``choices``, one per node of the posed problem, mean.

    Every node is told so many others of its choices, the best ones, with their prices.
    """
    told = _Told(posed, choices, most_alternatives)
    known: dict[int, Priced] = {}
    flops_known: dict[int, float] = {}
    outputs: dict[OutputRole, Placement] = {}
    found: dict[str, ChosenNode] = {}
    expansions: dict[str, Expansion] = {}
    expanded: dict[str, Expanded] = {}
    nodes = zip(posed.items, posed.problem.nodes, choices, strict=True)
    for index, (item, node, number) in enumerate(nodes):
        choice = node.choices[number]
        if isinstance(item, OutputRole):
            outputs[item] = choice.signature.operands[0]
            continue
        others = told.of_node(index)
        if item.op != "call_function":
            found[node.key] = ChosenNode(
                choice.signature,
                choice.seconds - choice.broken_s,
                alternatives=others,
            )
            continue
        priced = _priced(known, posed, item, choice)
        _, factors = posed.candidates.read[item]
        flops = flops_known.get(id(factors))
        if flops is None:
            flops = program.in_time.count * flops_of(factors, {})
            flops_known[id(factors)] = flops
        if not priced.parts:
            found[node.key] = ChosenNode(
                choice.signature, priced.choice.seconds, flops, priced.ways, others
            )
            continue
        expansion = expansions[node.key] = posed.candidates.expansion_of(
            item, choice.signature
        )
        parts = dict(_parts(posed, node.key, expansion, priced, flops))
        expanded[node.key] = Expanded(
            op_name(item), choice.signature, tuple(parts), others
        )
        found |= parts
    if expansions:
        program = inline(program, expansions)
    chosen = {node: found[info(node).key] for node in program.nodes()}
    return Chosen(program, chosen, expanded, outputs)


def _priced(
    known: dict[int, Priced], posed: Posed, item: fx.Node, choice: Choice
) -> Priced:
    found = known.get(id(choice))
    if found is None:
        found = known[id(choice)] = _find_priced(posed, item, choice)
    return found


def _find_priced(posed: Posed, item: fx.Node, choice: Choice) -> Priced:
    return next(
        priced
        for priced in posed.candidates.of_call(item)
        if priced.choice.signature == choice.signature
    )


def _parts(
    posed: Posed, key: str, expansion: Expansion, priced: Priced, flops: float
) -> Iterator[tuple[str, ChosenNode]]:
    """Yield what the parts of an op do; the slowest one has the flops of all."""
    seconds = [
        posed.candidates.part_seconds(expansion, part, signature)
        for part, signature in zip(expansion.parts, priced.parts, strict=True)
    ]
    slowest = seconds.index(max(seconds))
    for position, part in enumerate(expansion.parts):
        own = flops if position == slowest else 0.0
        chosen = ChosenNode(priced.parts[position], seconds[position], own, priced.ways)
        yield part_key(key, info(part).key), chosen


class _Told:
    """What nodes are told of their other choices, the best ones, with their prices."""

    def __init__(self, posed: Posed, choices: Sequence[int], most: int) -> None:
        self.posed = posed
        self.choices = choices
        self.most = most
        self._prices = Alternatives(posed.problem, choices) if most else None
        self._of_places: dict[Hashable, tuple[Alternative, ...]] = {}
        self._of_surroundings: dict[Around, tuple[Alternative, ...]] = {}

    def of_node(self, index: int) -> tuple[Alternative, ...]:
        """Return the alternatives of a node; nodes of equal surroundings share them."""
        if self._prices is None:
            return ()
        place = self._prices.place(index)
        found = self._of_places.get(place)
        if found is None:
            around = self._prices.around(index)
            found = self._of_surroundings.get(around)
            if found is None:
                found = self._of_surroundings[around] = self._find(self._prices, index)
            self._of_places[place] = found
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
        alternatives: list[Alternative] = []
        for seconds, other in found[: self.most]:
            parts = prices.parts_of(index, other, self._box_bytes)
            signature = choices[other].signature
            alternatives.append(
                Alternative(
                    signature, seconds, parts.compute_s, parts.bytes, parts.held_bytes
                )
            )
        return tuple(alternatives)

    def _box_bytes(self, type_: TensorType, made: Placement, want: Placement) -> int:
        mesh, hardware = self.posed.problem.mesh, self.posed.candidates.hardware
        return cheapest_steps(type_, made, want, mesh, hardware).bytes
