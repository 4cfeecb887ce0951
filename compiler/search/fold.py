"""Blocks that repeat, decided once: a smaller problem whose nodes stand for several.

Nodes that offer the very same choices may be told to choose alike; the cost of such an
assignment is a sum over *classes* of nodes and over groups of tensors between them,
each counted as often as it occurs. The classes are the places in the blocks of a run
(``repeats.py``). Any partition gives the cost of the assignments that respect it
exactly; what is left out are assignments in which the blocks of a run differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from partita.compiler.ir.sbp import Placement
from partita.compiler.search.offers import Offers
from partita.compiler.search.problem import (
    LetGo,
    Problem,
    Tie,
    cost_of,
    tied_placement,
)
from partita.compiler.search.repeats import alike

_Users = tuple[tuple[int, tuple[int, ...]], ...]
_Freed = tuple[tuple[int, int, LetGo], ...]
_Key = tuple[int, int, int, int, float, float, _Freed]  # users by a number


@dataclass(frozen=True, slots=True)
class Shared:
    """Tensors of one class of nodes that equal classes of users want.

    Attributes:
        source: the class that makes them.
        result: which of its results they are.
        users: per class of users, the operands that they are.
        times: how often in a step each of them takes it.
        rate: seconds per byte of holding copies of one (``HeldPrices.copies``).
        charged: how much of its memory is charged for (``HeldPrices.sources``).
        freed: per class of users and operand, what such a use may let go of
            (``HeldPrices.uses``).
        count: how many tensors these are.
    """

    source: int
    result: int
    users: _Users
    times: int
    rate: float
    charged: float
    freed: _Freed
    count: int


@dataclass(frozen=True)
class HandedOn:
    """A class of views that take what is made as it is.

    Attributes:
        source: the class that makes what they are of, and which of its results it is.
        user: the one class that wants a view, and which of its operands that is.
        taken: by the placement of a view, that of what it is of.
        choices: by the placement of a view, the choice that makes it.
    """

    source: tuple[int, int]
    user: tuple[int, int]
    taken: Mapping[Placement, Placement]
    choices: Mapping[Placement, int]


@dataclass(frozen=True)
class Fold:
    """A problem's nodes in classes that choose alike.

    Attributes:
        problem: the problem.
        class_of: of each node.
        handed: the classes of views that are to take what is made as it is
            (``leaving.boxed_once``).
    """

    problem: Problem
    class_of: tuple[int, ...]
    handed: Mapping[int, HandedOn] = field(
        default_factory=dict[int, HandedOn], compare=False
    )

    @classmethod
    def none(cls, problem: Problem) -> Fold:
        """Return the fold in which every node is by itself."""
        return cls(problem, tuple(range(len(problem.nodes))))

    @classmethod
    def of(cls, problem: Problem) -> Fold:
        """Return the fold by the runs of equal blocks."""
        return cls(problem, tuple(_classes(problem)))

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of every class, in order."""
        found: list[list[int]] = [[] for _ in set(self.class_of)]
        for node, number in enumerate(self.class_of):
            found[number].append(node)
        return tuple(tuple(members) for members in found)

    @property
    def has_classes(self) -> bool:
        """Whether any nodes are to choose alike."""
        return len(self.members) < len(self.class_of)

    @cached_property
    def shared(self) -> tuple[Shared, ...]:
        """The tensors, those alike counted together."""
        users: dict[tuple[int, int, int], list[int]] = {}
        nodes = self.problem.nodes
        several = max([len(node.operands) for node in nodes], default=0) + 1
        for node, number in zip(nodes, self.class_of, strict=True):
            use = number * several  # and the position: a number is faster than both
            for source, result in node.operands:
                tensor = source, result, node.times
                taken = users.get(tensor)
                if taken is None:
                    users[tensor] = [use]
                else:
                    taken.append(use)
                use += 1
        held = self.problem.held
        freed: dict[tuple[int, int, int], list[tuple[int, int, LetGo]]] = {}
        for (index, position), let_go in () if held is None else held.uses.items():
            user = self.problem.nodes[index]
            own = freed.setdefault((*user.operands[position], user.times), [])
            own.append((self.class_of[index], position, let_go))
        by_class: dict[tuple[int, ...], int] = {}
        numbers: dict[_Users, int] = {}  # faster to count by
        counts: dict[_Key, int] = {}
        rate = charged = 0.0
        released: _Freed = ()
        for tensor, taken in users.items():
            source, result, times = tensor
            wants = tuple(taken)
            number = by_class.get(wants)
            if number is None:
                pairs = [divmod(use, several) for use in wants]
                number = numbers.setdefault(_by_class(pairs), len(numbers))
                by_class[wants] = number
            if held is not None:
                rate = held.copies.get((source, result), 0.0)
                charged = held.sources.get((source, result), 0.0)
                released = tuple(sorted(freed.get(tensor, ()), key=_by_rate))
            made_by = self.class_of[source]
            key = made_by, result, number, times, rate, charged, released
            counts[key] = counts.get(key, 0) + 1
        every = list(numbers)
        return tuple(
            Shared(key[0], key[1], every[key[2]], key[3], key[4], key[5], key[6], count)
            for key, count in counts.items()
        )

    @cached_property
    def ties(self) -> tuple[Tie, ...]:
        """The ties between classes."""
        number = self.class_of
        pairs = ((number[tie.first], number[tie.second]) for tie in self.problem.ties)
        return tuple(Tie(first, second) for first, second in dict.fromkeys(pairs))

    @cached_property
    def offers(self) -> Offers:
        """What the classes may make and want."""
        return Offers([self.problem.nodes[first] for first, *_ in self.members])

    def with_prices(self, problem: Problem) -> Fold:
        """Return the fold of a problem that is this one but for types and prices.

        No view is handed on in it.
        """
        return self._with(Fold(problem, self.class_of))

    def with_handed(self, handed: Mapping[int, HandedOn]) -> Fold:
        """Return the fold in which these views are handed on."""
        return self._with(Fold(self.problem, self.class_of, handed))

    def _with(self, fold: Fold) -> Fold:
        """Return a fold whose classes take what they do here, and share it alike."""
        known = {"members": self.members, "shared": self.shared, "ties": self.ties}
        vars(fold).update({**known, "offers": self.offers})
        return fold

    def cost_of(self, choices: Sequence[int]) -> float:
        """Return ``cost_of`` an assignment, boxings of equal nodes at once.

        Args:
            choices: one per node of the problem.
        """
        firsts = [members[0] for members in self.members]
        pairs = zip(self.class_of, choices, strict=True)
        if not self.has_classes or any(choices[firsts[n]] != c for n, c in pairs):
            return cost_of(self.problem, choices)
        nodes = [self.problem.nodes[first] for first in firsts]
        chosen = [n.choices[choices[i]] for n, i in zip(nodes, firsts, strict=True)]
        for tie in self.ties:
            wanted = tied_placement(chosen[tie.first])
            if wanted != chosen[tie.second].signature.operands[0]:
                return inf
        each = zip(self.problem.nodes, choices, strict=True)
        total = sum([node.choices[choice].seconds for node, choice in each])
        for tensor in self.shared:
            made = chosen[tensor.source].signature.results[tensor.result]
            wants = {
                chosen[user].signature.operands[position]
                for user, positions in tensor.users
                for position in positions
            }
            wants.discard(made)
            if not wants:
                continue
            type_ = nodes[tensor.source].result_types[tensor.result]
            assert type_ is not None
            assert made is not None
            prices = [self.problem.box_seconds(type_, made, want) for want in wants]
            # Sorted, so that equal assignments have equal sums to the last bit.
            total += tensor.count * tensor.times * sum(sorted(prices))
        return total

    def unfold(self, choices: Sequence[int]) -> tuple[int, ...]:
        """Return the choice of every node from that of every class."""
        return tuple(choices[number] for number in self.class_of)


def _by_rate(freed: tuple[int, int, LetGo]) -> tuple[int, int, float]:
    number, position, let_go = freed
    return number, position, let_go.rate


def _by_class(wants: Sequence[tuple[int, int]]) -> _Users:
    """Return the operands that a tensor is, by the class of those who use it."""
    found: dict[int, set[int]] = {}
    for number, position in wants:
        found.setdefault(number, set()).add(position)
    return tuple(sorted((user, tuple(sorted(at))) for user, at in found.items()))


def _classes(problem: Problem) -> list[int]:
    nodes = problem.nodes
    numbers: dict[tuple[int, int], int] = {}
    labels = [
        numbers.setdefault((id(node.choices), node.times), len(numbers))
        for node in nodes
    ]
    operands = [node.operands for node in nodes]
    calls = [i for i, node in enumerate(nodes) if node.operands and node.result_types]
    return alike(labels, operands, calls)
