"""What the step would cost if one node chose otherwise and all others did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.model import Ints
from partita.compiler.search.numbering import (
    first_of,
    numbered,
    numbered_sequences,
    starts_of,
    stretches,
)
from partita.compiler.search.problem import (
    Choice,
    Problem,
    made_placement,
    tied_placement,
)


class Figures(Protocol):
    """What of a choice is no part of its price, or no part by itself."""

    def box_bytes(self, type_: TensorType, made: Placement, want: Placement) -> int:
        """Return what one rank puts on the wire to bring a tensor elsewhere."""
        ...

    def ways(self, index: int, choice: Choice) -> tuple[float, int]:
        """Return seconds and bytes of a parameter's ways to its optimizer and back."""
        ...

    def held_bytes(self, index: int, choice: Choice) -> int:
        """Return what the largest rank holds of a node, if it chooses so."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a step computes, sends and holds more by a change; see ``Alternative``."""

    compute_s: float
    bytes: int
    held_bytes: int


Want = tuple[int, Placement]
"""How often in a step a tensor is wanted, and in which placement."""


class _Tensor(NamedTuple):
    """A tensor that changed nodes make or use, and what all others have of it.

    Attributes:
        type: its logical type.
        maker: the changed node that makes it, by its position, and which result it is.
        made: the placement in which another node makes it.
        others: how others want it.
        uses: the changed nodes that use it, as which operands, how often in a step.
    """

    type: TensorType
    maker: tuple[int, int] | None
    made: Placement | None
    others: frozenset[Want]
    uses: tuple[tuple[int, int, int], ...]

    def boxed(
        self, taken: Sequence[Choice]
    ) -> Iterator[tuple[int, Placement, Placement]]:
        """Yield the boxings of it: how often in a step, from and to."""
        made = self.made
        if self.maker is not None:
            at, result = self.maker
            made = taken[at].signature.results[result]
        assert made is not None
        wanted = dict.fromkeys(self.others)
        for at, position, times in self.uses:
            wanted[times, taken[at].signature.operands[position]] = None
        for times, want in wanted:
            if want is not made and want != made:
                yield times, made, want


class Around(NamedTuple):
    """A node, what is tied to it, and the tensors that they make or use.

    Nodes of equal surroundings have equal alternatives.

    Attributes:
        changed: their choices, by the identity of the list, and which they took.
        tensors: in the order of the program.
    """

    changed: tuple[tuple[int, int], ...]
    tensors: tuple[_Tensor, ...]


class Alternatives:
    """Prices changes of one node against a whole assignment, without pricing it all."""

    def __init__(self, problem: Problem, choices: Sequence[int]) -> None:
        self.problem = problem
        self.choices = list(choices)
        self.tied: dict[int, list[int]] = {}
        for tie in problem.ties:
            self.tied.setdefault(tie.first, []).append(tie.second)
        self.is_output = {tie.second for tie in problem.ties}
        self._arounds: dict[int, Around] = {}
        self._wants: list[Want] = []  # by the numbers that they have
        self._takes = numbered(problem.offered, np.array(self.choices, dtype=np.int64))
        edges = problem.edges
        self._tensors = problem.first[edges.source] + edges.result  # of each use
        by_tensor = np.argsort(self._tensors, kind="stable")
        self._wanted = self._asked()[by_tensor]
        uses = np.bincount(self._tensors, minlength=int(problem.first[-1]))
        self._start = starts_of(uses)  # of each tensor's, in those that are wanted
        self._places: list[int] = self._numbered_places().tolist()

    def _asked(self) -> Ints:
        """Return of each use a number of how the tensor is wanted."""
        nodes, edges = self.problem.nodes, self.problem.edges
        wants: dict[Want, int] = {}
        asked: list[list[int]] = []
        for index in first_of(self._takes).tolist():
            operands = self._taken(index).signature.operands
            pairs = [(nodes[index].times, placement) for placement in operands]
            asked.append([wants.setdefault(pair, len(wants)) for pair in pairs])
        self._wants = list(wants)
        start = starts_of(np.array([len(each) for each in asked], dtype=np.int64))
        every = np.array([number for each in asked for number in each], dtype=np.int64)
        return every[start[self._takes[edges.user]] + edges.position]

    def _numbered_kinds(self) -> Ints:
        """Return a number per tensor: equal ones are made and wanted alike."""
        nodes, first = self.problem.nodes, self.problem.first
        known: dict[TensorType | None, int] = {}
        made = [type_ for node in nodes for type_ in node.result_types]
        types = [known.setdefault(type_, len(known)) for type_ in made]
        maker = np.repeat(np.arange(len(nodes)), np.diff(first))
        return numbered(
            np.array(types, dtype=np.int64),
            self._takes[maker],
            np.arange(len(maker)) - first[maker],
            numbered_sequences(self._wanted, self._start),
        )

    def _numbered_places(self) -> Ints:
        """Return a number per node, see ``place``.

        It is told by what the node and all that is tied to it take, by the kinds of the
        tensors that they use and make, and by which of these are the same, in the order
        of the program.
        """
        problem, edges = self.problem, self.problem.edges
        pairs = [(tie.first, tie.second) for tie in problem.ties]
        ties = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        owner = np.concatenate([np.arange(len(problem.nodes)), ties[:, 0]])
        member = np.concatenate([np.arange(len(problem.nodes)), ties[:, 1]])
        used, made = np.diff(edges.start)[member], np.diff(problem.first)[member]
        touched = np.concatenate(
            [
                self._tensors[stretches(edges.start[member], used)],
                stretches(problem.first[member], made),
            ]
        )
        by = np.concatenate([np.repeat(owner, used), np.repeat(owner, made)])
        kinds = numbered(self._numbered_kinds()[touched], _ranks(by, touched))
        count = len(problem.nodes)
        taken = _told_by(self._takes[member], owner, count)
        return numbered(taken, _told_by(kinds, by, count))

    def place(self, index: int) -> Hashable:
        """Return what tells as quickly as can be that nodes have equal surroundings.

        Nodes of equal places have; nodes of equal surroundings may have two places.
        """
        return self._places[index]

    def around(self, index: int) -> Around:
        """Return what the price of a node's alternatives depends on."""
        found = self._arounds.get(index)
        if found is None:
            found = self._arounds[index] = self._around(index)
        return found

    def _around(self, index: int) -> Around:
        nodes = self.problem.nodes
        changed = (index, *self.tied.get(index, ()))
        uses: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for at, number in enumerate(changed):
            for position, value in enumerate(nodes[number].operands):
                uses.setdefault(value, []).append((at, position, nodes[number].times))
            for result in range(len(nodes[number].result_types)):
                uses.setdefault((number, result), [])
        tensors: list[_Tensor] = []
        for value in sorted(uses):
            source, result = value
            type_ = nodes[source].result_types[result]
            if type_ is None:
                continue
            is_own = source in changed
            tensors.append(
                _Tensor(
                    type_,
                    (changed.index(source), result) if is_own else None,
                    None if is_own else made_placement(self._taken(source), result),
                    self._others(value, changed, uses[value]),
                    tuple(uses[value]),
                )
            )
        return Around(
            tuple((id(nodes[n].choices), self.choices[n]) for n in changed),
            tuple(tensors),
        )

    def of_node(self, index: int) -> list[tuple[int, float]]:
        """Return every choice of a node and the seconds the step gains or loses by it.

        A parameter takes its gradient along; the other nodes stay as they are.
        """
        tensors = self.around(index).tensors
        now = self._seconds(tensors, self._kept(index))
        found: list[tuple[int, float]] = []
        for choice in range(len(self.problem.nodes[index].choices)):
            taken = self._with_ties(index, choice)
            if taken is not None:
                found.append((choice, self._seconds(tensors, taken) - now))
        return sorted(found, key=lambda pair: pair[1])

    def parts_of(
        self, index: int, choices: Sequence[int], figures: Figures
    ) -> list[Parts]:
        """Return what of the prices of some choices is what; see ``of_node``.

        Raises:
            KeyError: for a choice that no tie allows.
        """
        before = self._parts(index, self._kept(index), figures)
        found: list[Parts] = []
        for choice in choices:
            taken = self._with_ties(index, choice)
            if taken is None:
                raise KeyError(choice)
            after = self._parts(index, taken, figures)
            compute_s, sent, held = (a - b for a, b in zip(after, before, strict=True))
            found.append(Parts(compute_s, int(sent), int(held)))
        return found

    def _taken(self, index: int) -> Choice:
        return self.problem.nodes[index].choices[self.choices[index]]

    def _kept(self, index: int) -> list[Choice]:
        """Return what the node and all tied to it chose."""
        return [self._taken(n) for n in (index, *self.tied.get(index, ()))]

    def _others(
        self,
        value: tuple[int, int],
        changed: Sequence[int],
        uses: Sequence[tuple[int, int, int]],
    ) -> frozenset[Want]:
        """Return how a tensor is wanted but for the changed nodes."""
        source, result = value
        number = self.problem.first[source] + result
        wanted = self._wanted[self._start[number] : self._start[number + 1]]
        counts = Counter(self._wants[each] for each in wanted.tolist())
        own = Counter(
            (times, self._taken(changed[at]).signature.operands[position])
            for at, position, times in uses
        )
        return frozenset(want for want, count in counts.items() if count > own[want])

    def _with_ties(self, index: int, choice: int) -> list[Choice] | None:
        """Return what the node and all tied to it choose then, if that is possible."""
        stored = self.problem.nodes[index].choices[choice]
        taken = [stored]
        for other in self.tied.get(index, ()):
            wanted = tied_placement(stored)
            options = self.problem.nodes[other].choices
            fitting = (o for o in options if o.signature.operands[0] == wanted)
            found = next(fitting, None)
            if found is None:
                return None
            taken.append(found)
        return taken

    def _parts(
        self, index: int, taken: Sequence[Choice], figures: Figures
    ) -> tuple[float, int, int]:
        held, compute_s = 0, 0.0
        sent = sum(
            times * figures.box_bytes(tensor.type, made, want)
            for tensor in self.around(index).tensors
            for times, made, want in tensor.boxed(taken)
        )
        changed = (index, *self.tied.get(index, ()))
        for number, choice in zip(changed, taken, strict=True):
            ways_s, ways_bytes = figures.ways(number, choice)
            compute_s += choice.seconds - choice.broken_s - ways_s
            sent += ways_bytes
            held += figures.held_bytes(number, choice)
        return compute_s, sent, held

    def _seconds(self, tensors: Sequence[_Tensor], taken: Sequence[Choice]) -> float:
        """Return the seconds of the changed nodes and of all boxings they touch."""
        total = sum([choice.seconds for choice in taken])
        box_seconds = self.problem.box_seconds
        for tensor in tensors:
            for times, made, want in tensor.boxed(taken):
                total += times * box_seconds(tensor.type, made, want)
        return total


def _told_by(numbers: Ints, owner: Ints, count: int) -> Ints:
    """Return a number for each of so many owners: who has equal ones, in order."""
    order = np.argsort(owner, kind="stable")
    lengths = np.bincount(owner, minlength=count)
    return numbered_sequences(numbers[order], starts_of(lengths))


def _ranks(owner: Ints, values: Ints) -> Ints:
    """Return which of its owner's distinct values each is, the least first."""
    order = np.lexsort((values, owner))
    owners, ordered = owner[order], values[order]
    is_new_owner = np.diff(owners, prepend=-1) != 0
    is_new = is_new_owner | (np.diff(ordered, prepend=-1) != 0)
    count = np.cumsum(is_new)
    base = count[is_new_owner]
    ranks = np.empty(len(values), np.int64)
    ranks[order] = count - base[np.cumsum(is_new_owner) - 1]
    return ranks
