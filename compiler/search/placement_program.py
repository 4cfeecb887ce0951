"""The placements of a folded problem as an integer program.

    x[n, a] in {0, 1}      class n takes choice a;  sum_a x[n, a] = 1
    z[v, u, q, w] >= 0     tensor v is made as q, its user u wants it as w
    y[v, q, w]             v is boxed from q to w: at least every z[v, u, q, w]
    minimize  seconds . x + boxing seconds . y

``ilp.py`` writes down the same of a reduced model. Here every node is there by name,
for ``memory_rows.py`` to say what is held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import NamedTuple

from partita.compiler.ir.sbp import Placement
from partita.compiler.search.call_times import Tensor, Use
from partita.compiler.search.fold import Fold
from partita.compiler.search.linear import NO, Linear, LinearProgram, total
from partita.compiler.search.model import Bools
from partita.compiler.search.problem import Choice, made_placement, tied_placement

Places = dict[Placement, Linear]


class Pair(NamedTuple):
    """How one user takes a tensor: as it is made, or boxed to a placement."""

    as_made: Linear
    boxed: Places
    ways: dict[tuple[Placement, Placement], Linear]


@dataclass
class PlacementProgram:
    """The program of a fold, as far as each class may take the choices ``allowed``."""

    fold: Fold
    allowed: Sequence[Bools]
    program: LinearProgram = field(default_factory=LinearProgram)
    _pairs: dict[object, Pair] = field(default_factory=dict[object, Pair])
    _boxes: dict[object, dict[tuple[Placement, Placement], Linear]] = field(
        default_factory=dict[object, dict[tuple[Placement, Placement], Linear]]
    )

    def __post_init__(self) -> None:
        self.problem = self.fold.problem
        self.x = [self._choose(number) for number in range(len(self.fold.members))]
        for tie in self.fold.ties:
            asked, taken = self._tied(tie.first), self._wanted(tie.second, 0)
            for placement in dict.fromkeys((*asked, *taken)):
                parts = asked.get(placement, NO), taken.get(placement, NO)
                self.program.require(parts[0] - parts[1], 0.0, 0.0)
        counts = Counter(self._key(value) for value in self.uses)
        first = {self._key(value): value for value in reversed(self.uses)}
        for key, count in counts.items():
            self._boxes[key] = self._box(first[key], count)

    @cached_property
    def uses(self) -> dict[Tensor, list[Use]]:
        """Who uses each tensor that is used, in the order of the nodes."""
        found: dict[Tensor, list[Use]] = {}
        for index, node in enumerate(self.problem.nodes):
            for position, value in enumerate(node.operands):
                found.setdefault(value, []).append((index, position))
        return found

    def choices_of(self, node: int) -> list[tuple[int, Choice, Linear]]:
        """Return the choices that a node may take: number, choice, whether taken."""
        return self.x[self.fold.class_of[node]]

    def made(self, value: Tensor) -> Places:
        """Return in which placement a tensor is made."""
        return self._made(self.fold.class_of[value[0]], value[1])

    def pair(self, value: Tensor, use: Use) -> Pair:
        """Return how a tensor is taken by a use of it."""
        number = self.fold.class_of
        key = number[value[0]], value[1], number[use[0]], use[1]
        if key not in self._pairs:
            self._pairs[key] = self._pair(*key, value)
        return self._pairs[key]

    def boxes(self, value: Tensor) -> dict[tuple[Placement, Placement], Linear]:
        """Return from which placement to which a tensor is boxed."""
        return self._boxes[self._key(value)]

    def choices(self, values: Sequence[float]) -> tuple[int, ...]:
        """Return the choice of every node in a solution of the program."""
        taken = [
            max(own, key=lambda entry: values[next(iter(entry[2].terms))])[0]
            for own in self.x
        ]
        return self.fold.unfold(taken)

    def _choose(self, number: int) -> list[tuple[int, Choice, Linear]]:
        members = self.fold.members[number]
        choices = self.problem.nodes[members[0]].choices
        found = [
            (at, choice, self.program.choice(choice.seconds * len(members)))
            for at, choice in enumerate(choices)
            if self.allowed[number][at]
        ]
        self.program.require(total(taken for _, _, taken in found), 1.0, 1.0)
        return found

    def _made(self, number: int, result: int) -> Places:
        found: dict[Placement, list[Linear]] = {}
        for _, choice, taken in self.x[number]:
            found.setdefault(made_placement(choice, result), []).append(taken)
        return {placement: total(parts) for placement, parts in found.items()}

    def _wanted(self, number: int, position: int) -> Places:
        found: dict[Placement, list[Linear]] = {}
        for _, choice, taken in self.x[number]:
            want = choice.signature.operands[position]
            found.setdefault(want, []).append(taken)
        return {placement: total(parts) for placement, parts in found.items()}

    def _tied(self, number: int) -> Places:
        found: dict[Placement, list[Linear]] = {}
        for _, choice, taken in self.x[number]:
            found.setdefault(tied_placement(choice), []).append(taken)
        return {placement: total(parts) for placement, parts in found.items()}

    def _key(self, value: Tensor) -> object:
        number = self.fold.class_of
        users = {(number[user], position) for user, position in self.uses[value]}
        return number[value[0]], value[1], tuple(sorted(users))

    def _price(self, value: Tensor, made: Placement, want: Placement) -> float:
        type_ = self.problem.nodes[value[0]].result_types[value[1]]
        assert type_ is not None
        return 0.0 if made == want else self.problem.box_seconds(type_, made, want)

    def _pair(
        self, source: int, result: int, user: int, position: int, value: Tensor
    ) -> Pair:
        made, wanted = self._made(source, result), self._wanted(user, position)
        ways: dict[tuple[Placement, Placement], Linear] = {}
        for own in made:
            for want in wanted:
                if self._price(value, own, want) < inf:
                    ways[own, want] = self.program.column()
        if source == user:  # the block before is of its own class
            ways = self._within(source, result, position, value)
        elif len(made) == 1 and len(ways) == len(wanted):
            (own,) = made
            ways = {(own, want): taken for want, taken in wanted.items()}
        elif len(wanted) == 1 and len(ways) == len(made):
            (want,) = wanted
            ways = {(own, want): taken for own, taken in made.items()}
        else:
            for own, taken in made.items():
                row = total(z for way, z in ways.items() if way[0] == own)
                self.program.require(row - taken, 0.0, 0.0)
            for want, taken in wanted.items():
                row = total(z for way, z in ways.items() if way[1] == want)
                self.program.require(row - taken, 0.0, 0.0)
        boxed: dict[Placement, list[Linear]] = {}
        for (own, want), z in ways.items():
            if own != want:
                boxed.setdefault(want, []).append(z)
        named = self.program.named
        return Pair(
            named(total(z for (own, want), z in ways.items() if own == want)),
            {want: named(total(parts)) for want, parts in boxed.items()},
            ways,
        )

    def _within(
        self, number: int, result: int, position: int, value: Tensor
    ) -> dict[tuple[Placement, Placement], Linear]:
        found: dict[tuple[Placement, Placement], list[Linear]] = {}
        for _, choice, taken in self.x[number]:
            way = made_placement(choice, result), choice.signature.operands[position]
            found.setdefault(way, []).append(taken)
        ways = {way: total(parts) for way, parts in found.items()}
        for way, taken in ways.items():
            if self._price(value, *way) == inf:
                self.program.require(taken, most=0.0)
        return ways

    def _box(
        self, value: Tensor, count: int
    ) -> dict[tuple[Placement, Placement], Linear]:
        often: dict[int, dict[tuple[Placement, Placement], list[Linear]]] = {}
        seen: set[object] = set()
        for use in self.uses[value]:
            own = self.fold.class_of[use[0]], use[1]
            if own in seen:
                continue
            seen.add(own)
            ways = often.setdefault(self.problem.nodes[use[0]].times, {})
            for way, z in self.pair(value, use).ways.items():
                if way[0] != way[1]:
                    ways.setdefault(way, []).append(z)
        found: dict[tuple[Placement, Placement], Linear] = {}
        for times, ways in often.items():
            for (made, want), parts in ways.items():
                boxed = found[made, want] = self.program.either(parts)
                price = self._price(value, made, want)
                self.program.charge(boxed, count * times * price)
        return found
