"""What an assignment chose for every node of the program that will run.

Where the signature taken asks for an op to be taken apart its parts run in its place.
They stand beside the logical program, which nothing changes; who goes through a program
of what runs asks for ``Chosen.whole``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import fx

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
from partita.compiler.plan.alternative import Alternative
from partita.compiler.plan.document import Expanded
from partita.compiler.rules.expansion import Expansion
from partita.compiler.rules.inline import part_key
from partita.compiler.search.candidates import Candidates, Priced, flops_of
from partita.compiler.search.held import Held
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import Choice
from partita.compiler.search.told import Told

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
    """What every node of the program that will run does, and how outputs leave.

    Attributes:
        program: the logical one, or that of ``whole``, in which nothing is left to be
            taken apart.
        nodes: what runs, in order: those of the program, and parts of others.
        expanded: what is taken apart, by key.
        outputs: how each output leaves.
        used: the operands of every node.
        results: what leaves.
        candidates: of the logical program.
        expansions: the parts of what the program has in one.
        made_by: of what is taken apart which part makes each result, and as which of
            its own.
    """

    program: Program
    nodes: Mapping[fx.Node, ChosenNode]
    expanded: Mapping[str, Expanded]
    outputs: Mapping[OutputRole, Placement]
    used: Mapping[fx.Node, Sequence[Value]]
    results: Sequence[tuple[Value, OutputRole]]
    candidates: Candidates
    expansions: Mapping[str, Expansion] = field(default_factory=dict[str, Expansion])
    made_by: Mapping[str, Mapping[int, tuple[str, int]]] = field(
        default_factory=dict[str, Mapping[int, tuple[str, int]]]
    )

    @cached_property
    def whole(self) -> Chosen:
        """The same with a program in which the parts are in the places of the nodes."""
        if not self.expansions:
            return self
        program = self.candidates.in_parts(self.expansions)
        return self._of(replace(program, mesh=self.program.mesh), {})

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
        for node, signature in signatures.items():
            pairs = zip(self.used[node], signature.operands, strict=True)
            for value, wanted in pairs:
                made = signatures[value.node].results[value.index]
                if wanted is not made and wanted != made:
                    fact = info(node)
                    found.setdefault((value, wanted), {})[fact.key] = fact.phase
        for value, wanted, user, phase in self._leaving():
            if wanted != signatures[value.node].results[value.index]:
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
        yield from self._leaving()

    def _leaving(self) -> Iterator[tuple[Value, Placement, str, Phase]]:
        """Yield those of what leaves."""
        for value, role in self.results:
            phase = phase_of_output(role.kind)
            yield value, self.outputs[role], f"{role.kind}:{role.name}", phase

    def with_again(self, keys: Collection[str]) -> Chosen:
        """Return this with the nodes ``keys`` made again for the backward."""
        if not keys:
            return self
        clones = {
            again_key(info(node).key): replace(chosen, alternatives=())
            for node, chosen in self.nodes.items()
            if info(node).key in keys
        }
        return self._of(make_again(self.whole.program, keys), clones)

    def _of(self, program: Program, more: Mapping[str, ChosenNode]) -> Chosen:
        """Return the same of another program, which has some nodes more, by key."""
        known = {info(node).key: chosen for node, chosen in self.nodes.items()}
        known |= more
        return replace(
            self,
            program=program,
            nodes={node: known[info(node).key] for node in program.nodes()},
            used={node: operands(node) for node in program.nodes()},
            results=_results_of(program),
            expansions={},
        )


def _results_of(program: Program) -> list[tuple[Value, OutputRole]]:
    return [(value_of(node), role) for node, role in program.results()]


def read_choices(
    program: Program,
    posed: Posed,
    choices: Sequence[int],
    most_alternatives: int = 0,
) -> Chosen:
    """Return what ``choices``, one per node of the posed problem, mean.

    Every node is told so many others of its choices, the best ones, with their prices.
    """
    told = Told(posed, choices, most_alternatives)
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
    results = _results_of(program)
    used = posed.candidates.used
    if not expansions:
        return Chosen(
            program, found, expanded, outputs, used, results, posed.candidates
        )
    assert program.graph is posed.candidates.program.graph
    placed = _Placed(posed.candidates, parts)
    for node, chosen in found.items():
        placed.take(node, chosen, expansions.get(info(node).key))
    return Chosen(
        program,
        placed.nodes,
        expanded,
        outputs,
        placed.used,
        [(placed.moved.get(value, value), role) for value, role in results],
        posed.candidates,
        expansions,
        made_by,
    )


@dataclass
class _Placed:
    """What runs, in order, with parts in the places of what is taken apart.

    ``known`` are what the parts do, by key.
    """

    candidates: Candidates
    known: Mapping[str, ChosenNode]
    nodes: dict[fx.Node, ChosenNode] = field(default_factory=dict[fx.Node, ChosenNode])
    used: dict[fx.Node, list[Value]] = field(default_factory=dict[fx.Node, list[Value]])
    moved: dict[Value, Value] = field(default_factory=dict[Value, Value])

    def take(
        self, node: fx.Node, chosen: ChosenNode, expansion: Expansion | None
    ) -> None:
        """Put the next node of the program in its place, or its parts."""
        given, moved = self.candidates.used[node], self.moved
        if any(value in moved for value in given):
            given = [moved.get(value, value) for value in given]
        if expansion is None:
            self.nodes[node], self.used[node] = chosen, given
            return
        apart = self.candidates.apart(node, expansion)
        for part, values in apart.used(given):
            self.nodes[part], self.used[part] = self.known[info(part).key], values
        for index, value in apart.results(given):
            moved[Value(node, index)] = value


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
