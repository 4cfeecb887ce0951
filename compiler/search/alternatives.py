"""What the step would cost if one node chose otherwise and all others did not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.problem import Choice, Problem, made_placement

BoxBytes = Callable[[TensorType, Placement, Placement], int]
"""What one rank puts on the wire to bring a tensor from one placement to another."""


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
    ) -> Iterator[tuple[int, TensorType, Placement, Placement]]:
        """Yield the boxings of it: how often in a step, of what, from and to."""
        made = self.made
        if self.maker is not None:
            at, result = self.maker
            made = made_placement(taken[at], result)
        assert made is not None
        wanted = dict.fromkeys(self.others)
        for at, position, times in self.uses:
            wanted[times, taken[at].signature.operands[position]] = None
        for times, want in wanted:
            if want != made:
                yield times, self.type, made, want


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
        self.wanted: dict[tuple[int, int], dict[Want, int]] = {}
        for node, choice in zip(problem.nodes, choices, strict=True):
            wants = node.choices[choice].signature.operands
            for value, placement in zip(node.operands, wants, strict=True):
                counts = self.wanted.setdefault(value, {})
                want = node.times, placement
                counts[want] = counts.get(want, 0) + 1
        self.tied: dict[int, list[int]] = {}
        for tie in problem.ties:
            self.tied.setdefault(tie.first, []).append(tie.second)
        self.is_output = {tie.second for tie in problem.ties}
        self._kinds: dict[object, int] = {}
        self._kind_of: dict[tuple[int, int], int] = {}

    def place(self, index: int) -> Hashable:
        """Return what tells as quickly as can be that nodes have equal surroundings.

        Nodes of equal places have; nodes of equal surroundings may have two places.
        """
        touched: list[tuple[int, int]] = []
        taken: list[int] = []
        for number in (index, *self.tied.get(index, ())):
            node = self.problem.nodes[number]
            taken += (id(node.choices), self.choices[number], node.times)
            touched += node.operands
            touched += [(number, result) for result in range(len(node.result_types))]
        values = sorted(set(touched))
        return (
            tuple(taken),
            tuple([self._kind(value) for value in values]),
            tuple([values.index(value) for value in touched]),
        )

    def _kind(self, value: tuple[int, int]) -> int:
        """Return a number for all tensors of one type, made and wanted alike."""
        found = self._kind_of.get(value)
        if found is None:
            source, result = value
            maker = self.problem.nodes[source]
            kind = (
                maker.result_types[result],
                *(id(maker.choices), self.choices[source], result),
                frozenset(self.wanted.get(value, {}).items()),
            )
            found = self._kinds.setdefault(kind, len(self._kinds))
            self._kind_of[value] = found
        return found

    def around(self, index: int) -> Around:
        """Return what the price of a node's alternatives depends on."""
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
        around = self.around(index)
        now = self._seconds(around, self._kept(index))
        found: list[tuple[int, float]] = []
        for choice in range(len(self.problem.nodes[index].choices)):
            taken = self._with_ties(index, choice)
            if taken is not None:
                found.append((choice, self._seconds(around, taken) - now))
        return sorted(found, key=lambda pair: pair[1])

    def parts_of(self, index: int, choice: int, box_bytes: BoxBytes) -> Parts:
        """Return what of a choice's price is what; see ``of_node``.

        Raises:
            KeyError: for a choice that no tie allows.
        """
        around, taken = self.around(index), self._with_ties(index, choice)
        if taken is None:
            raise KeyError(choice)
        compute_s, sent, held = (
            after - before
            for after, before in zip(
                self._parts(index, around, taken, box_bytes),
                self._parts(index, around, self._kept(index), box_bytes),
                strict=True,
            )
        )
        return Parts(compute_s, int(sent), int(held))

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
        counts = self.wanted.get(value)
        if counts is None or not uses:
            return frozenset(counts or ())
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
            wanted = made_placement(stored, 0)
            options = self.problem.nodes[other].choices
            fitting = (o for o in options if o.signature.operands[0] == wanted)
            found = next(fitting, None)
            if found is None:
                return None
            taken.append(found)
        return taken

    def _parts(
        self, index: int, around: Around, taken: Sequence[Choice], box_bytes: BoxBytes
    ) -> tuple[float, int, int]:
        mesh, held, compute_s = self.problem.mesh, 0, 0.0
        sent = sum(
            times * box_bytes(type_, made, want)
            for tensor in around.tensors
            for times, type_, made, want in tensor.boxed(taken)
        )
        changed = (index, *self.tied.get(index, ()))
        for number, choice in zip(changed, taken, strict=True):
            compute_s += choice.seconds - choice.broken_s
            for result, type_ in enumerate(self.problem.nodes[number].result_types):
                if type_ is not None:
                    placement = made_placement(choice, result)
                    numel = largest_shard_numel(type_.shape, placement, mesh)
                    held += numel * type_.dtype.itemsize
        return compute_s, sent, held

    def _seconds(self, around: Around, taken: Sequence[Choice]) -> float:
        """Return the seconds of the changed nodes and of all boxings they touch."""
        total = sum(choice.seconds for choice in taken)
        for tensor in around.tensors:
            for times, type_, made, want in tensor.boxed(taken):
                total += times * self.problem.box_seconds(type_, made, want)
        return total
