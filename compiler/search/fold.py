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

import numpy as np

from partita.compiler.ir.sbp import Placement
from partita.compiler.search.model import Ints
from partita.compiler.search.numbering import (
    first_of,
    numbered,
    numbered_sequences,
    starts_of,
)
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
_Charge = tuple[float, float, _Freed]


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
        edges, number = self.problem.edges, np.array(self.class_of, dtype=np.int64)
        times = self.problem.times[edges.user]
        tensor = numbered(edges.source, edges.result, times)
        first = first_of(tensor)  # the uses that each tensor is first met in
        several = int(edges.position.max(initial=0)) + 1
        use = number[edges.user] * several + edges.position
        every = int(use.max(initial=0)) + 1
        of_tensor, uses = np.divmod(np.unique(tensor * every + use), every)
        start = starts_of(np.bincount(of_tensor))
        charges = self._charges(first)
        numbers: dict[_Charge, int] = {}
        charged = [numbers.setdefault(each, len(numbers)) for each in charges]
        kind = numbered(
            number[edges.source[first]],
            edges.result[first],
            times[first],
            numbered_sequences(uses, start),
            np.array(charged, dtype=np.int64),
        )
        counts = np.bincount(kind)
        by_use = np.argsort(first)
        leading = by_use[first_of(kind[by_use])]  # of each kind the first tensor
        found: list[Shared] = []
        for one in sorted(leading.tolist(), key=first.__getitem__):
            use, own = int(first[one]), uses[start[one] : start[one + 1]]
            pairs = [divmod(each, several) for each in own.tolist()]
            rate, part, freed = charges[one]
            found.append(
                Shared(
                    source=int(number[edges.source[use]]),
                    result=int(edges.result[use]),
                    users=_by_class(pairs),
                    times=int(times[use]),
                    rate=rate,
                    charged=part,
                    freed=freed,
                    count=int(counts[kind[one]]),
                )
            )
        return tuple(found)

    def _charges(self, first: Ints) -> list[_Charge]:
        """Return what holding tensors is charged, by the uses they are first met in."""
        held, edges = self.problem.held, self.problem.edges
        if held is None:
            return [(0.0, 0.0, ())] * len(first)
        freed: dict[tuple[int, int, int], list[tuple[int, int, LetGo]]] = {}
        for (index, position), let_go in held.uses.items():
            user = self.problem.nodes[index]
            own = freed.setdefault((*user.operands[position], user.times), [])
            own.append((self.class_of[index], position, let_go))
        columns = edges.source, edges.result, self.problem.times[edges.user]
        sources, results, times = (column[first].tolist() for column in columns)
        return [
            (
                held.copies.get((source, result), 0.0),
                held.sources.get((source, result), 0.0),
                tuple(sorted(freed.get((source, result, count), ()), key=_by_rate)),
            )
            for source, result, count in zip(sources, results, times, strict=True)
        ]

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
    nodes = enumerate(problem.nodes)
    calls = [index for index, node in nodes if node.operands and node.result_types]
    return alike(problem.offered.tolist(), problem.edges, calls)
