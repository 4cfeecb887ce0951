"""The problem with memory at a price: what a rank holds costs seconds per byte.

With a price on the bytes held at the moments where memory is short, the cheapest
assignment is the fastest of those that hold no more than it does (Everett, "Generalized
Lagrange Multiplier Method for Solving Problems of Optimum Allocation of Resources",
Operations Research 11(3), 1963), as far as these prices go; what is made again in
truth, keeping.py finds.

The prices are never more than what is held, so that with any price p

    least priced cost - p * limit  <=  seconds of whatever keeps to the limit

(weak duality). A tensor is charged for the moments at which it, or a copy in its place,
must be there or be made again: where some use of it, or of a view of it, comes later.
Making it again costs its own seconds at least. A use that boxes it to less lets go of
it: the copy is charged alone (``HeldPrices``), and never less than nothing: who lets go
of it is given back no more than was charged, even if it could have been made again for
less than holding it costs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from partita.compiler.cost.held_bytes import held_bytes
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.call_times import CallTimes, Tensor, Use
from partita.compiler.search.late_uses import LateUses
from partita.compiler.search.pose import Posed
from partita.compiler.search.problem import (
    Choice,
    HeldCharges,
    HeldPrices,
    LetGo,
    Problem,
    SearchNode,
    made_placement,
)
from partita.compiler.search.state import States
from partita.compiler.search.workspaces import Workspaces


@dataclass(frozen=True)
class MemoryPrice:
    """Prices the memory of a posed problem.

    Attributes:
        posed: the problem, priced by time.
        optimizer: what holds moments of every parameter.
        moments: at which memory is short.
    """

    posed: Posed
    optimizer: str
    moments: Sequence[int]

    def problem(self, seconds_per_byte: float) -> Problem:
        """Return the problem with every byte held at all the moments at this price.

        What could be made again costs no more than that.
        """
        return self._priced(seconds_per_byte, may_make_again=True)

    def kept_problem(self, seconds_per_byte: float) -> Problem:
        """Return the same as if nothing could be made again.

        It bounds nothing, but leads to placements that hold less by themselves.
        """
        return self._priced(seconds_per_byte, may_make_again=False)

    def _priced(self, seconds_per_byte: float, may_make_again: bool) -> Problem:
        if not seconds_per_byte:
            return self.posed.problem
        part = seconds_per_byte / len(self.moments)
        held: dict[Tensor, float] = defaultdict(float)
        uses: dict[Use, float] = defaultdict(float)
        roots: dict[Use, Tensor] = {}
        for value in self._roots:
            for moment in self.moments:
                path = self._late.path(value, moment)
                if path is not None and self._times.time(value) <= moment:
                    held[value] += part
                    for use in path:
                        uses[use] += part
                        roots[use] = value
        sums = self._times.sums
        there = {value: self._while_added(leaves) for value, leaves in sums.items()}
        for value, while_there in there.items():
            held[value] += while_there * seconds_per_byte
        nodes = self._nodes(held, seconds_per_byte, may_make_again)
        known: dict[object, tuple[Choice, ...]] = {}
        for value, (leaf, *_) in sums.items():
            type_ = nodes[value[0]].result_types[value[1]]
            rate = (1 - there[value]) * seconds_per_byte
            assert type_ is not None
            key = id(nodes[leaf].choices), type_, rate
            if key not in known:
                known[key] = self._complete(nodes[leaf].choices, type_, rate)
            nodes[leaf] = replace(nodes[leaf], choices=known[key])
        let_go = self._let_go(uses, roots, nodes)
        for moment in self.moments:
            index = self._late.node_at.get(moment)
            if index is not None:
                nodes[index] = self._working(index, nodes[index], part)
        views = self._late.roots.items()
        prices = HeldPrices(
            self._copies(part),
            {value: size if held.get(root) else 0.0 for value, (root, size) in views},
            let_go,
            self._late.in_backward,
        )
        return replace(self.posed.problem, nodes=tuple(nodes), held=prices)

    def _copies(self, rate: float) -> dict[Tensor, float]:
        """Return what copies cost that both halves want, held between them."""
        found: dict[Tensor, float] = {}
        for value, (first, last) in self._late.between.items():
            count = sum(first <= moment <= last for moment in self.moments)
            if count:
                found[value] = rate * count
        return found

    @property
    def _late(self) -> LateUses:
        return self.posed.known(LateUses)

    @property
    def _times(self) -> CallTimes:
        return self._late.times

    @cached_property
    def _workspaces(self) -> Workspaces:
        return Workspaces(self.posed)

    @property
    def _roots(self) -> list[Tensor]:
        """What other stages hand over, and what calls make that is no view."""
        received = sorted(self._states.received)
        handed = (value for index in received for value in self._times.values(index))
        return [*handed, *self._late.made]

    @property
    def _while_fed(self) -> float:
        """The part of the moments at which what is fed to the step is there."""
        until = self._times.moments.of_place(self._times.fed_until)
        there = sum(moment <= until for moment in self.moments)
        return there / len(self.moments)

    def _while_added(self, leaves: Sequence[int]) -> float:
        """Return the part of the moments at which a sum waits for its completing."""
        of_place = self._times.moments.of_place
        last = max(of_place(self._times.completed[leaf]) + 1 for leaf in leaves)
        return sum(moment <= last for moment in self.moments) / len(self.moments)

    def _complete(
        self, choices: tuple[Choice, ...], type_: TensorType, rate: float
    ) -> tuple[Choice, ...]:
        """Charge what a sum leaves as, from where it is completed."""
        if not rate:
            return choices
        found: list[Choice] = []
        for choice in choices:
            (want,) = choice.signature.operands
            num_bytes = held_bytes(type_, want, self.posed.problem.mesh)
            found.append(replace(choice, seconds=choice.seconds + rate * num_bytes))
        return tuple(found)

    @cached_property
    def _states(self) -> States:
        return States(self.posed, self.optimizer)

    def _let_go(
        self,
        uses: Mapping[Use, float],
        roots: Mapping[Use, Tensor],
        charged: Sequence[SearchNode],
    ) -> dict[Use, LetGo]:
        """Return what uses may let go of: of the tensors that they are views of."""
        known: dict[object, HeldCharges] = {}
        found: dict[Use, LetGo] = {}
        for use, rate in uses.items():
            index, result = roots[use]
            plain, node = self.posed.problem.nodes[index], charged[index]
            type_ = node.result_types[result]
            assert type_ is not None
            key = id(plain.choices), id(node.choices), result, type_
            if key not in known:
                known[key] = self._charges(plain, node, result, type_)
            found[use] = LetGo(rate, known[key])
        return found

    def _charges(
        self, plain: SearchNode, charged: SearchNode, result: int, type_: TensorType
    ) -> HeldCharges:
        """Return what a node's choices are charged more than they were."""
        seconds = [
            more.seconds - own.seconds
            for more, own in zip(charged.choices, plain.choices, strict=True)
        ]
        mesh = self.posed.problem.mesh
        held = [
            held_bytes(type_, made_placement(choice, result), mesh)
            for choice in plain.choices
        ]
        return HeldCharges(np.array(seconds), np.array(held, dtype=np.float64))

    def _nodes(
        self, held: dict[Tensor, float], rate: float, may_make_again: bool
    ) -> list[SearchNode]:
        known: dict[object, tuple[Choice, ...]] = {}
        nodes: list[SearchNode] = []
        states = self._states
        for index, node in enumerate(self.posed.problem.nodes):
            if index in states.entering or index in states.fed:
                part = 1.0 if index in states.entering else self._while_fed
                key = id(node.choices), node.result_types, part
                if key not in known:
                    known[key] = _stored(states, index, part * rate)
            else:
                values = [(index, at) for at in range(len(node.result_types))]
                own = tuple(held.get(value, 0.0) for value in values)
                is_made = index not in states.received
                again = is_made and may_make_again and self._times.is_forward(index)
                key = id(node.choices), node.result_types, own, again
                if key not in known:
                    known[key] = self._charged(node, own, again)
            nodes.append(replace(node, choices=known[key]))
        return nodes

    def _working(self, index: int, node: SearchNode, rate: float) -> SearchNode:
        """Charge what a kernel takes for itself while it runs."""
        taken = [self._workspaces.of(index, choice) for choice in node.choices]
        if not any(taken):
            return node
        choices = (
            replace(choice, seconds=choice.seconds + rate * num_bytes)
            for choice, num_bytes in zip(node.choices, taken, strict=True)
        )
        return replace(node, choices=tuple(choices))

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


def _stored(states: States, index: int, rate: float) -> tuple[Choice, ...]:
    """Charge what enters, with what is held of it if it is trained."""
    found: list[Choice] = []
    for choice in states.posed.problem.nodes[index].choices:
        num_bytes = states.of(index, choice).num_bytes
        found.append(replace(choice, seconds=choice.seconds + rate * num_bytes))
    return tuple(found)
