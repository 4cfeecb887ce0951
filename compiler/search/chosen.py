"""What an assignment chose for every node of the program that will run.

That program has the parts of an op in its place wherever the signature taken asks for
the op to be taken apart.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import fx

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.held_bytes import held_bytes
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
from partita.compiler.rules.inline import part_key
from partita.compiler.search.alternatives import Alternatives, Around
from partita.compiler.search.candidates import Priced, flops_of
from partita.compiler.search.held import Held
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice, made_placement
from partita.compiler.search.state import States

Consumers = dict[tuple[Value, Placement], dict[str, Phase]]
"""Who wants each tensor in each placement, by key, and when."""


@dataclass(frozen=True)
class ChosenNode:
    """What one node does: ``flops`` of all ranks together, split in ``ways`` parts.

    ``held`` is how a parameter that is trained is held apart from its storage.
    """

    signature: Signature
    seconds: float
    flops: float = 0.0
    ways: int = 1
    alternatives: tuple[Alternative, ...] = ()
    held: Held | None = None


@dataclass(frozen=True)
class Chosen:
    """The program that will run, its nodes' choices, and how outputs leave.

    ``used`` are the operands of every node; ``nodes`` are in the program's order. Of
    what is taken apart ``made_by`` has which part makes each result, and as which of
    its own.
    """

    program: Program
    nodes: Mapping[fx.Node, ChosenNode]
    expanded: Mapping[str, Expanded]
    outputs: Mapping[OutputRole, Placement]
    used: Mapping[fx.Node, Sequence[Value]]
    made_by: Mapping[str, Mapping[int, tuple[str, int]]] = field(
        default_factory=dict[str, Mapping[int, tuple[str, int]]]
    )

    def in_parts(self, keys: Collection[str]) -> set[str]:
        """Return keys of nodes and boxings, those of parts where it is taken apart."""
        found: set[str] = set()
        for key in keys:
            producer, _, boxed = key.rpartition("#")
            index, _, target = boxed.partition(" -> ")
            if key in self.expanded:
                found.update(self.expanded[key].nodes)
            elif producer in self.made_by and int(index) in self.made_by[producer]:
                part, result = self.made_by[producer][int(index)]
                found.add(f"{part}#{result} -> {target}")
            else:
                found.add(key)
        return found

    def consumers(self) -> Consumers:
        """Return who wants each tensor in each placement, by key, and when.

        An output goes by its printed form, ``gradient:h.0.weight``.
        """
        found: Consumers = {}
        for value, wanted, user, phase in self._asks():
            found.setdefault((value, wanted), {})[user] = phase
        return found

    def boxed(self) -> Consumers:
        """Return those ``consumers`` who want a tensor otherwise than it is made."""
        found: Consumers = {}
        signatures = {node: chosen.signature for node, chosen in self.nodes.items()}
        for value, wanted, user, phase in self._asks():
            node, result = value
            made = signatures[node].results[result]
            if wanted is not made and wanted != made:
                found.setdefault((value, wanted), {})[user] = phase
        return found

    def _asks(self) -> Iterator[tuple[Value, Placement, str, Phase]]:
        """Yield every use of a tensor: which, how it is wanted, by whom and when."""
        for node, chosen in self.nodes.items():
            used = self.used[node]
            if used:
                fact = info(node)
                wanted = chosen.signature.operands
                for value, placement in zip(used, wanted, strict=True):
                    yield value, placement, fact.key, fact.phase
        for node, role in self.program.results():
            phase = phase_of_output(role.kind)
            yield value_of(node), self.outputs[role], f"{role.kind}:{role.name}", phase

    def with_again(self, keys: Collection[str]) -> Chosen:
        """Return this with the nodes ``keys`` made again for the backward."""
        if not keys:
            return self
        program = make_again(self.program, keys)
        known = {info(node).key: chosen for node, chosen in self.nodes.items()}
        clones = {again_key(key): replace(known[key], alternatives=()) for key in keys}
        known |= clones
        nodes = {node: known[info(node).key] for node in program.nodes()}
        used = used_in(program)
        return replace(self, program=program, nodes=nodes, used=used)


def used_in(program: Program) -> dict[fx.Node, list[Value]]:
    """Return the operands of every node of a program."""
    return {node: operands(node) for node in program.nodes()}


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
    count = program.in_time.count
    known: dict[Hashable, tuple[ChosenNode, Priced | None]] = {}
    outputs: dict[OutputRole, Placement] = {}
    found: dict[fx.Node, ChosenNode] = {}
    expansions: dict[str, Expansion] = {}
    parts: dict[str, ChosenNode] = {}
    expanded: dict[str, Expanded] = {}
    made_by: dict[str, Mapping[int, tuple[str, int]]] = {}
    nodes = zip(posed.items, posed.problem.nodes, choices, strict=True)
    for index, (item, node, number) in enumerate(nodes):
        if isinstance(item, OutputRole):
            outputs[item] = node.choices[number].signature.operands[0]
            continue
        place = told.place(index)
        read = known.get(place)
        if read is None:
            others = told.of_node(index)
            read = known[place] = _read(
                posed, item, node.choices[number], others, count
            )
        chosen, priced = read
        found[item] = chosen
        if priced is None or not priced.parts:
            continue
        expansion = expansions[node.key] = posed.candidates.expansion_of(
            item, chosen.signature
        )
        own = dict(_parts(posed, node.key, expansion, priced, chosen.flops))
        expanded[node.key] = Expanded(
            op_name(item), chosen.signature, tuple(own), chosen.alternatives
        )
        parts |= own
        made_by[node.key] = dict(_results(node.key, expansion))
    if not expansions:
        return Chosen(program, found, expanded, outputs, posed.candidates.used)
    assert program.graph is posed.candidates.program.graph
    program = replace(posed.candidates.in_parts(expansions), mesh=program.mesh)
    by_key = {info(node).key: chosen for node, chosen in found.items()} | parts
    return Chosen(
        program,
        {node: by_key[info(node).key] for node in program.nodes()},
        expanded,
        outputs,
        used_in(program),
        made_by,
    )


def told_of(
    posed: Posed, choices: Sequence[int], most_alternatives: int
) -> dict[str, tuple[Alternative, ...]]:
    """Return what ``read_choices`` tells of other choices, by node of the problem."""
    told = _Told(posed, choices, most_alternatives)
    known: dict[Hashable, tuple[Alternative, ...]] = {}
    found: dict[str, tuple[Alternative, ...]] = {}
    for index, node in enumerate(posed.problem.nodes):
        if not isinstance(posed.items[index], OutputRole):
            place = told.place(index)
            if place not in known:
                known[place] = told.of_node(index)
            found[node.key] = known[place]
    return found


def _read(
    posed: Posed,
    item: fx.Node,
    choice: Choice,
    others: tuple[Alternative, ...],
    count: int,
) -> tuple[ChosenNode, Priced | None]:
    """Return what a choice means, of a call also what it was chosen from."""
    signature = choice.signature
    if item.op != "call_function":
        seconds = choice.seconds - choice.broken_s
        node = ChosenNode(signature, seconds, alternatives=others, held=choice.held)
        return node, None
    priced = next(
        priced
        for priced in posed.candidates.of_call(item)
        if priced.choice.signature == signature
    )
    _, factors = posed.candidates.read[item]
    flops = count * flops_of(factors, {})
    seconds = priced.choice.seconds
    return ChosenNode(signature, seconds, flops, priced.ways, others), priced


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


def _results(key: str, expansion: Expansion) -> Iterator[tuple[int, tuple[str, int]]]:
    """Yield by which part each result of an op is made, and as which of its own."""
    for result, node in enumerate(expansion.results):
        if node is not None and node.op == "call_function":
            value = value_of(node)
            yield result, (part_key(key, info(value.node).key), value.index)


class _Told:
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
