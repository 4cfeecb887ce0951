"""The problem with memory at a price: what a rank holds costs seconds per byte.

With a price on the bytes held at the moments where memory is short, the cheapest
assignment is the fastest of those that hold no more than it does (Everett, "Generalized
Lagrange Multiplier Method for Solving Problems of Optimum Allocation of Resources",
Operations Research 11(3), 1963), as far as these prices go: a tensor that forward makes
and backward uses costs what it takes to hold it or to make it again, whichever is less,
as if its operands were there. What is made again in truth, keeping.py finds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import fx

from partita.compiler.cost.lifetimes import Lifetime, held_bytes, lifetimes
from partita.compiler.cost.optimizer_memory import moments_of
from partita.compiler.ir.program import (
    InputKind,
    OutputKind,
    Phase,
    Value,
    info,
    value_of,
)
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import (
    Choice,
    CopyPrices,
    Problem,
    SearchNode,
    made_placement,
)


@dataclass(frozen=True)
class MemoryPrice:
    """Prices the memory of a posed problem.

    Attributes:
        posed: the problem, priced by time.
        optimizer: what holds moments of every parameter.
        moments: positions among the program's calls at which memory is short.
    """

    posed: Posed
    optimizer: str
    moments: Sequence[int]

    def problem(self, seconds_per_byte: float) -> Problem:
        """Return the problem with every byte held at all the moments at this price."""
        held = self._lifetimes()
        rates = {
            value: seconds_per_byte * self._part_of_moments(lifetime)
            for value, lifetime in held.items()
        }
        known: dict[object, tuple[Choice, ...]] = {}
        nodes: list[SearchNode] = []
        copies: dict[tuple[int, int], float] = {}
        in_backward: list[bool] = []
        trained = self.posed.candidates.program.trained
        roles = dict(self.posed.candidates.program.placeholders())
        for index, item in enumerate(self.posed.items):
            node = self.posed.problem.nodes[index]
            if not isinstance(item, fx.Node):
                in_backward.append(item.kind is OutputKind.GRADIENT)
                nodes.append(node)
                continue
            in_backward.append(info(item).phase is not Phase.FORWARD)
            own: list[float] = []
            for result, type_ in enumerate(node.result_types):
                value = Value(item, result)
                is_own = type_ is not None and held[value].owner == value
                own.append(rates[value] if is_own else 0.0)
                if type_ is not None and rates[value]:
                    copies[index, result] = rates[value]
            role = roles.get(item)
            if role is not None:
                is_trained = role.kind is InputKind.PARAMETER and role.name in trained
                pin = self.posed.pins.get(role.name) if is_trained else None
                key = id(node.choices), is_trained, pin
                if key not in known:
                    name = role.name if is_trained else None
                    known[key] = self._stored(node, name, seconds_per_byte)
                nodes.append(replace(node, choices=known[key]))
                continue
            again = info(item).phase is Phase.FORWARD
            key = id(node.choices), tuple(own), again
            if key not in known:
                known[key] = self._charged(node, own, again)
            nodes.append(replace(node, choices=known[key]))
        return replace(
            self.posed.problem,
            nodes=tuple(nodes),
            copies=CopyPrices(copies, tuple(in_backward)),
        )

    def _lifetimes(self) -> dict[Value, Lifetime]:
        """Return when tensors are held; what adds up over microbatches always is."""
        program = self.posed.candidates.program
        held = lifetimes(program)
        for node, role in program.results() if program.in_time.count > 1 else ():
            if role.kind.adds_up:
                value = value_of(node)
                held[value] = Lifetime(-1, held[value].last, value)
        return held

    def _stored(
        self, node: SearchNode, trained: str | None, rate: float
    ) -> tuple[Choice, ...]:
        """Charge what enters, with what is held of it if it is trained."""
        if not rate:
            return node.choices
        mesh = self.posed.problem.mesh
        (type_,) = node.result_types
        assert type_ is not None
        found: list[Choice] = []
        for choice in node.choices:
            stored = made_placement(choice, 0)
            num_bytes = held_bytes(type_, stored, mesh)
            if trained is not None:
                held = self.posed.held(trained, stored).optimizer
                tensors = 1 + moments_of(self.optimizer) + (held != stored)
                num_bytes += tensors * held_bytes(type_, held, mesh)
            found.append(replace(choice, seconds=choice.seconds + rate * num_bytes))
        return tuple(found)

    def _charged(
        self, node: SearchNode, rates: Sequence[float], again: bool
    ) -> tuple[Choice, ...]:
        if not any(rates):
            return node.choices
        mesh = self.posed.problem.mesh
        found: list[Choice] = []
        for choice in node.choices:
            extra = 0.0
            for result, (rate, type_) in enumerate(
                zip(rates, node.result_types, strict=True)
            ):
                if rate and type_ is not None:
                    placement = made_placement(choice, result)
                    extra += rate * held_bytes(type_, placement, mesh)
            if again:
                extra = min(extra, choice.seconds - choice.broken_s)
            found.append(replace(choice, seconds=choice.seconds + extra))
        return tuple(found)

    def _part_of_moments(self, lifetime: Lifetime) -> float:
        spanned = sum(lifetime.first <= m < lifetime.last for m in self.moments)
        return spanned / len(self.moments)
