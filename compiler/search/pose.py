"""Pose the search problem of a program: nodes, choices, ties, prices.

Placeholders choose where they are stored, calls choose a signature, outputs choose
in which placement they leave. A parameter chooses together with its storage in which
pieces its optimizer has it (pieces.py), and its gradient leaves complete as that says;
a mutated buffer leaves as it came; the loss leaves as ``B``; nothing leaves partial.
What the optimizer's step takes, and a parameter's way to it and back, is part of the
price of how it is held.

Seconds are those of a step. Where the batch is cut into microbatches, each of them
makes every call and every boxing; but gradients and the loss add up before they leave,
and what gives them their last placement is done once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from torch import fx

from partita.compiler.cost.compute import op_seconds
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
from partita.compiler.search.pieces import Pieces
from partita.compiler.search.pinned import Pinned
from partita.compiler.search.pins import Pin
from partita.compiler.search.problem import (
    Choice,
    Problem,
    SearchNode,
    Tie,
    check_operands,
    made_placement,
    tied_placement,
)
from partita.compiler.search.problem_prices import boxing_prices_of
from partita.compiler.search.wide_sums import with_narrow

Item = fx.Node | OutputRole

_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Posed:
    """A problem and what its nodes stand for, by position.

    ``pins`` are those of parameters, by their (first) names; ``optimizer`` updates
    these.
    """

    problem: Problem
    items: tuple[Item, ...]
    candidates: Candidates
    pins: Mapping[str, Pin] = field(default_factory=dict[str, Pin])
    optimizer: str = "adamw"
    _known: dict[object, Any] = field(
        default_factory=dict[object, Any], compare=False, repr=False
    )

    def known(self, make: Callable[[Posed], _Made]) -> _Made:
        """Return what is made of the problem, once for all with the same nodes.

        That is for what choices and prices make no difference to: ``replace`` hands it
        on to a problem that differs in these.
        """
        if make not in self._known:
            self._known[make] = make(self)
        found: _Made = self._known[make]
        return found

    @cached_property
    def fold(self) -> Fold:
        """The problem's repeated blocks."""
        return Fold.of(self.problem)

    @cached_property
    def let_go(self) -> frozenset[int]:
        """Positions of outputs that a step hands to nobody, unless they are boxed."""
        if self.candidates.program.returns_outputs:
            return frozenset()
        ends = enumerate(self.items)
        return frozenset(
            at
            for at, item in ends
            if isinstance(item, OutputRole) and item.kind is OutputKind.OUTPUT
        )

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
        self.pieces = Pieces(self.mesh, candidates.hardware, optimizer)
        self._trained = self.program.trained
        self._choices: dict[int, tuple[Choice, ...]] = {}
        self._known: dict[tuple[Choice, ...], tuple[Choice, ...]] = {}
        self._adding: dict[tuple[int, tuple[int, ...]], tuple[Choice, ...]] = {}
        self._same_choices: dict[tuple[int, ...], tuple[Choice, ...]] = {}
        self._entering: dict[object, tuple[Choice, ...]] = {}
        self._alike: dict[tuple[int, TensorType, bool], tuple[Choice, ...]] = {}
        self._leaving: dict[tuple[Placement, ...], tuple[Choice, ...]] = {}
        self.roles = dict(self.program.placeholders())
        self.stored = {  # an input may have the name of one of them
            role.name: node for node, role in self.roles.items() if role.kind.is_state
        }
        self._added = self._added_up()
        self.pinned = Pinned(candidates, pins)

    def pose(self, wide_sums: bool) -> Posed:
        nodes = list(self.candidates.used)
        at = {node: index for index, node in enumerate(nodes)}
        choices: dict[Item, tuple[Choice, ...]] = {
            node: self._of_call(node) for node in nodes if node.op == "call_function"
        }
        for node, role in self.roles.items():
            choices[node] = self._of_placeholder(node, role, choices)
        times = self.program.in_time.count
        items: list[Item] = list(nodes)
        search_nodes: list[SearchNode] = []
        for node, sources in zip(nodes, self.candidates.reading.sources, strict=True):
            fact = info(node)
            search_nodes.append(
                SearchNode(fact.key, choices[node], sources, fact.types, times)
            )
        ties: list[Tie] = []
        for node, role in self.program.results():
            value = value_of(node)
            if role.kind in (OutputKind.GRADIENT, OutputKind.MUTATED_BUFFER):
                source = self.stored[role.name]
                ties.append(Tie(at[source], len(items)))
                placements = [tied_placement(choice) for choice in choices[source]]
                placements = list(dict.fromkeys(placements))
            elif role.kind is OutputKind.LOSS:
                placements = [Placement.broadcast(self.mesh.ndim)]
            else:
                placements = self.candidates.of_tensor(type_of(value), {})
            name = f"{role.kind}:{role.name}"
            placements = self.candidates.within.of_leaf(name, placements)
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
        prices = boxing_prices_of(
            search_nodes,
            self.mesh,
            self.candidates.hardware,
            self.candidates.known.boxings,
        )
        problem = Problem(tuple(search_nodes), tuple(ties), self.mesh, prices)
        check_operands(problem)
        pins = {
            role.name: self.pinned.pins[node]
            for node, role in self.roles.items()
            if node in self.pinned.pins and role.kind is InputKind.PARAMETER
        }
        optimizer = self.pieces.optimizer
        return Posed(problem, tuple(items), self.candidates, pins, optimizer)

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
        """Return the choices of what enters; equal ones are one tuple."""
        type_, within = type_of(Value(node, 0)), self.candidates.within
        if role.kind is not InputKind.PARAMETER:
            wants = self._wants(node, calls)
            whole = Placement.broadcast(self.mesh.ndim)
            wanted = [whole, *sorted({w for w in wants if _is_stored(w)}, key=str)]
            return self._entered(node, role, list(dict.fromkeys(wanted)))
        segments = {
            dim: self.candidates.segments_of(Value(node, 0), dim)
            for dim in range(type_.ndim)
        }
        placements = self.candidates.of_tensor(type_, segments)  # which keeps them
        if within.axes or node in self.pinned.pins or role.name in self._bound:
            return self._entered(node, role, placements)
        alike = id(placements), type_, self._is_trained(role)
        found = self._alike.get(alike)
        if found is None:
            found = self._alike[alike] = self._entered(node, role, placements)
        return found

    def _entered(
        self, node: fx.Node, role: InputRole, placements: Sequence[Placement]
    ) -> tuple[Choice, ...]:
        """Return the choices of what enters, where it may be placed so."""
        type_, key = type_of(Value(node, 0)), info(node).key
        within, is_trained = self.candidates.within, self._is_trained(role)
        pin = self.pinned.pins.get(node, Pin(None))
        storages = tuple(within.of_leaf(key, self.pinned.offered(node, placements)))
        offered: tuple[Placement, ...] = ()
        if is_trained and role.name not in self._bound:  # else as pinned, or stored
            offered = tuple(within.of_optimizer(key, placements))
        known = pin, type_, storages, offered, is_trained
        choices = self._entering.get(known)
        if choices is None:
            held = self._held(pin, type_, storages, offered)
            plain = (Choice(Signature((), (p,)), 0.0) for p in storages)
            choices = self._entering[known] = tuple(held if is_trained else plain)
        found = self.pinned.of_placeholder(node, choices)
        return self._known.setdefault(found, found)

    def _held(
        self,
        pin: Pin,
        type_: TensorType,
        storages: Sequence[Placement],
        offered: Sequence[Placement],
    ) -> Iterator[Choice]:
        """Yield how a trained parameter may be stored, and held apart from that.

        What is held as it is stored comes first: of choices that cost the same the
        search takes the first, and these hold no more.
        """
        is_open = bool(offered) and not (pin.fixes_held and pin.is_hard)
        found = self.pieces.of(type_, storages, offered) if is_open else {}
        ways: dict[tuple[Placement, Held], None] = {}
        for storage in storages:
            own = found.get(storage, [])
            if pin.fixes_held or not own:
                own = [pin.held(storage), *own]
            ways |= dict.fromkeys((storage, held) for held in own)
        for storage, held in sorted(ways, key=lambda way: way[1].optimizer != way[0]):
            seconds = self.pieces.seconds(type_, storage, held)
            yield Choice(Signature((), (storage,)), seconds, held=held)

    @cached_property
    def _bound(self) -> frozenset[str]:
        """Parameters whose gradient is another's too, for which a pin says how.

        The gradient is completed once.
        """
        sharing: dict[Value, list[str]] = {}
        for node, role in self.program.results():
            if role.kind is OutputKind.GRADIENT:
                sharing.setdefault(value_of(node), []).append(role.name)
        pins = self.pinned.pins
        asked = {
            name
            for name, node in self.stored.items()
            if node in pins and (pins[node].gradient or pins[node].optimizer)
        }
        together = (names for names in sharing.values() if len(names) > 1)
        return frozenset(n for own in together if asked & {*own} for n in own)

    def _is_trained(self, role: InputRole) -> bool:
        return role.kind is InputKind.PARAMETER and role.name in self._trained


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
