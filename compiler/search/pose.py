"""Pose the search problem of a program: nodes, choices, ties, prices.

Placeholders choose where they are stored, calls choose a signature, outputs choose
in which placement they leave. A gradient leaves as its parameter is stored, unless a
pin says in which placement it is complete; a mutated buffer as it came; the loss
leaves as ``B``; nothing leaves partial. What a parameter's way to its optimizer and
back takes is part of the price of its storage.

Seconds are those of a step. Where the batch is cut into microbatches, each of them
makes every call and every boxing; but gradients and the loss add up before they leave,
and what gives them their last placement is done once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import fx

from partita.compiler.cost.boxing_prices import BoxingPrices, Table
from partita.compiler.cost.compute import op_seconds
from partita.compiler.cost.optimizer_memory import touched_bytes
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import (
    InputKind,
    InputRole,
    OutputKind,
    OutputRole,
    Program,
    Value,
    info,
    type_of,
    value_of,
)
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.candidates import Candidates
from partita.compiler.search.fold import Fold
from partita.compiler.search.held import Held
from partita.compiler.search.pinned import Pinned
from partita.compiler.search.pins import Pin
from partita.compiler.search.problem import (
    Choice,
    Problem,
    SearchNode,
    Tie,
    made_placement,
)
from partita.compiler.search.wide_sums import WidePrices, with_narrow

Item = fx.Node | OutputRole


@dataclass(frozen=True)
class Posed:
    """A problem and what its nodes stand for, by position.

    ``pins`` are those of parameters, by their (first) names.
    """

    problem: Problem
    items: tuple[Item, ...]
    candidates: Candidates
    pins: Mapping[str, Pin] = field(default_factory=dict[str, Pin])

    @cached_property
    def fold(self) -> Fold:
        """The problem's repeated blocks."""
        return Fold.of(self.problem)

    def held(self, name: str, storage: Placement) -> Held:
        """Return how the trained parameter ``name`` is held if it is stored so."""
        return self.pins.get(name, Pin(None)).held(storage)

    def index(self, item: Item) -> int:
        """Return the position of a node or output."""
        return self.items.index(item)


def pose(
    candidates: Candidates,
    pins: Mapping[str, str],
    optimizer: str = "adamw",
    wide_sums: bool = True,
) -> Posed:
    """Return the search problem of a program.

    With ``wide_sums`` gradients are added up over ranks behind their casts to a wider
    dtype (wide_sums.py).

    Raises:
        BadOptions: for a pin that is unknown or illegal.
        NoSolution: when a pin leaves a node nothing to choose.
    """
    return _Poser(candidates, pins, optimizer).pose(wide_sums)


class _Poser:
    def __init__(
        self, candidates: Candidates, pins: Mapping[str, str], optimizer: str
    ) -> None:
        self.candidates = candidates
        self.program: Program = candidates.program
        self.mesh = candidates.mesh
        self.optimizer = optimizer
        self._trained = self.program.trained
        self._choices: dict[int, tuple[Choice, ...]] = {}
        self._known: dict[tuple[Choice, ...], tuple[Choice, ...]] = {}
        self._adding: dict[tuple[int, tuple[int, ...]], tuple[Choice, ...]] = {}
        self._same_choices: dict[tuple[int, ...], tuple[Choice, ...]] = {}
        self._entering: dict[object, tuple[Choice, ...]] = {}
        self._leaving: dict[tuple[Placement, ...], tuple[Choice, ...]] = {}
        self.roles = dict(self.program.placeholders())
        self.stored = {role.name: node for node, role in self.roles.items()}
        self._added = self._added_up()
        self.pinned = Pinned(candidates, pins)

    def pose(self, wide_sums: bool) -> Posed:
        nodes = list(self.candidates.used)
        at = {node: index for index, node in enumerate(nodes)}
        choices: dict[Item, tuple[Choice, ...]] = {
            node: self._of_call(node) for node in nodes if node.op == "call_function"
        }
        for node, role in self.roles.items():
            found = self._of_placeholder(node, role, choices)
            choices[node] = self._known.setdefault(found, found)
        times = self.program.in_time.count
        items: list[Item] = list(nodes)
        search_nodes: list[SearchNode] = []
        for node, sources in zip(nodes, self.candidates.sources, strict=True):
            fact = info(node)
            search_nodes.append(
                SearchNode(fact.key, choices[node], sources, fact.types, times)
            )
        ties: list[Tie] = []
        for node, role in self.program.results():
            value = value_of(node)
            pin = self._pin_of_gradient(role)
            if pin is not None:
                placements = [pin]
            elif role.kind in (OutputKind.GRADIENT, OutputKind.MUTATED_BUFFER):
                source = self.stored[role.name]
                ties.append(Tie(at[source], len(items)))
                placements = [c.signature.results[0] for c in choices[source]]
            elif role.kind is OutputKind.LOSS:
                placements = [Placement.broadcast(self.mesh.ndim)]
            else:
                placements = self.candidates.of_tensor(type_of(value), {})
            name = f"{role.kind}:{role.name}"
            offered = [p for p in placements if p is not None]
            placements = self.candidates.within.of_leaf(name, offered)
            search_nodes.append(
                SearchNode(
                    name,
                    self._of_output(tuple(placements)),
                    ((at[value.node], value.index),),
                    (),
                    1 if role.kind.adds_up else times,
                )
            )
            items.append(role)
        if wide_sums:
            gradients = {
                index
                for index, item in enumerate(items)
                if isinstance(item, OutputRole) and item.kind.is_gradient
            }
            search_nodes = list(with_narrow(search_nodes, gradients))
        prices = _prices(
            search_nodes,
            self.mesh,
            self.candidates.hardware,
            self.candidates.known.boxings,
        )
        problem = Problem(tuple(search_nodes), tuple(ties), self.mesh, prices)
        pins = {
            role.name: self.pinned.pins[node]
            for node, role in self.roles.items()
            if node in self.pinned.pins and role.kind is InputKind.PARAMETER
        }
        return Posed(problem, tuple(items), self.candidates, pins)

    def _pin_of_gradient(self, role: OutputRole) -> Placement | None:
        if role.kind is not OutputKind.GRADIENT:
            return None
        pin = self.pinned.pins.get(self.stored[role.name])
        return None if pin is None else pin.gradient

    def _of_call(self, node: fx.Node) -> tuple[Choice, ...]:
        found = self.candidates.of_call(node)
        every = self._choices.get(id(found))
        if every is None:
            every = self._choices[id(found)] = tuple(priced.choice for priced in found)
        if node in self._added:
            every = self._with_adding(every, info(node).types, self._added[node])
        kept = self.pinned.of_call(node, every)
        return every if kept is every else self._same(kept)

    def _added_up(self) -> dict[fx.Node, tuple[int, ...]]:
        """Return which results of the calls add up over microbatches."""
        found: dict[fx.Node, set[int]] = {}
        for node, role in self.program.results():
            if role.kind.adds_up and self.program.in_time.count > 1:
                value = value_of(node)
                found.setdefault(value.node, set()).add(value.index)
        return {node: tuple(sorted(results)) for node, results in found.items()}

    def _with_adding(
        self,
        choices: tuple[Choice, ...],
        types: Sequence[TensorType | None],
        results: tuple[int, ...],
    ) -> tuple[Choice, ...]:
        """Return the choices with the time of adding up some of their results."""
        known = id(choices), results
        if known not in self._adding:
            self._adding[known] = tuple(
                replace(
                    choice,
                    seconds=choice.seconds
                    + sum(
                        adding_seconds(
                            type_,
                            made_placement(choice, result),
                            self.mesh,
                            self.candidates.hardware,
                            self.program.in_time.count,
                        )
                        for result in results
                        if (type_ := types[result]) is not None
                    ),
                )
                for choice in choices
            )
        return self._adding[known]

    def _same(self, choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
        """Return the one tuple of these very choices: equal nodes are told by it."""
        return self._same_choices.setdefault(tuple(map(id, choices)), choices)

    def _of_output(self, placements: tuple[Placement, ...]) -> tuple[Choice, ...]:
        """Return the choices of what leaves in one of these placements."""
        found = self._leaving.get(placements)
        if found is None:
            found = tuple(Choice(Signature((p,), ()), 0.0) for p in placements)
            found = self._leaving[placements] = self._known.setdefault(found, found)
        return found

    def _wants(
        self, node: fx.Node, choices: Mapping[Item, tuple[Choice, ...]]
    ) -> set[Placement]:
        """Return the placements in which calls may want what enters."""
        return {
            choice.signature.operands[position]
            for user in node.users
            if user in choices
            for position, value in enumerate(self.candidates.used[user])
            if value.node is node
            for choice in choices[user]
        }

    def _of_placeholder(
        self,
        node: fx.Node,
        role: InputRole,
        calls: Mapping[Item, tuple[Choice, ...]],
    ) -> tuple[Choice, ...]:
        type_ = type_of(Value(node, 0))
        placements: list[Placement]
        if role.kind is InputKind.PARAMETER:
            segments = {
                dim: self.candidates.segments_of(Value(node, 0), dim)
                for dim in range(type_.ndim)
            }
            placements = list(self.candidates.of_tensor(type_, segments))
        else:
            wants = self._wants(node, calls)
            whole = Placement.broadcast(self.mesh.ndim)
            placements = [whole, *sorted({w for w in wants if _is_stored(w)}, key=str)]
            placements = list(dict.fromkeys(placements))
        placements = self.pinned.offered(node, placements)
        placements = self.candidates.within.of_leaf(info(node).key, placements)
        pin = self.pinned.pins.get(node)
        known = self._is_trained(role), pin, type_, tuple(placements)
        choices = self._entering.get(known)
        if choices is None:
            choices = self._entering[known] = tuple(
                Choice(Signature((), (p,)), self._held_seconds(role, pin, type_, p))
                for p in placements
            )
        return self.pinned.of_placeholder(node, choices)

    def _held_seconds(
        self, role: InputRole, pin: Pin | None, type_: TensorType, storage: Placement
    ) -> float:
        """Return the seconds of the update of what is stored so, and of the ways."""
        if not self._is_trained(role):
            return 0.0
        held = (pin or Pin(None)).held(storage)
        hardware = self.candidates.hardware
        ways_s = held.seconds(type_, storage, self.mesh, hardware)
        return ways_s + update_seconds(
            type_, held.optimizer, self.mesh, hardware, self.optimizer
        )

    def _is_trained(self, role: InputRole) -> bool:
        return role.kind is InputKind.PARAMETER and role.name in self._trained


def priced_on(problem: Problem, hardware: Hardware) -> Problem:
    """Return the problem with boxings as they are on another machine."""
    prices = _prices(problem.nodes, problem.mesh, hardware, {})
    return replace(problem, box_seconds=prices)


def _prices(
    nodes: Sequence[SearchNode],
    mesh: Mesh,
    hardware: Hardware,
    known: dict[object, Table],
) -> WidePrices:
    """Return what prices all boxings that the nodes may ask for."""
    prices = BoxingPrices(mesh, hardware, known)
    for type_, (made, wanted) in _boxed(nodes).items():
        prices.expect(type_, made, wanted)
    return WidePrices(prices)


def update_seconds(
    type: TensorType,
    placement: Placement,
    mesh: Mesh,
    hardware: Hardware,
    optimizer: str,
) -> float:
    """Return the time of an optimizer's step on the largest shard of a parameter."""
    local = largest_shard_numel(type.shape, placement, mesh)
    size = type.dtype.itemsize
    device = hardware.device
    kernels = touched_bytes(optimizer, local * size, size, device.kind)
    return sum(op_seconds(0.0, each, type.dtype, device) for each in kernels)


def adding_seconds(
    type: TensorType, placement: Placement, mesh: Mesh, hardware: Hardware, count: int
) -> float:
    """Return the time of adding up a tensor that ``count`` microbatches make.

    A rank adds each to what it has in the placement in which they are made; that
    begins as zeros.
    """
    num_bytes = largest_shard_numel(type.shape, placement, mesh) * type.dtype.itemsize
    device = hardware.device
    zeros_s = op_seconds(0.0, num_bytes, type.dtype, device)
    return zeros_s + count * op_seconds(0.0, 3 * num_bytes, type.dtype, device)


def _is_stored(placement: Placement) -> bool:
    return not placement.has_partial


Placements = dict[Placement, None]  # a set in the order in which they were found


def _boxed(
    nodes: Sequence[SearchNode],
) -> dict[TensorType, tuple[Placements, Placements]]:
    """Return, by type, the placements in which tensors may be made and wanted."""
    found: dict[TensorType, tuple[Placements, Placements]] = {}
    seen: set[tuple[int, int, int, int]] = set()
    for node in nodes:
        for position, (source, result) in enumerate(node.operands):
            type_ = nodes[source].result_types[result]
            assert type_ is not None
            edge = id(nodes[source].choices), result, id(node.choices), position
            if edge in seen:
                continue
            seen.add(edge)
            made, wanted = found.setdefault(type_, ({}, {}))
            for choice in nodes[source].choices:
                made[made_placement(choice, result)] = None
            for choice in node.choices:
                wanted[choice.signature.operands[position]] = None
    return found
