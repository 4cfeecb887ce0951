"""What the step would cost if one node chose otherwise and all others did not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from partita.compiler.ir.layout import largest_shard_numel
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.problem import Problem, made_placement

BoxBytes = Callable[[TensorType, Placement, Placement], int]
"""What one rank puts on the wire to bring a tensor from one placement to another."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a step computes, sends and holds more by a change; see ``Alternative``."""

    compute_s: float
    bytes: int
    held_bytes: int


class Alternatives:
    """Prices changes of one node against a whole assignment, without pricing it all."""

    def __init__(self, problem: Problem, choices: Sequence[int]) -> None:
        self.problem = problem
        self.choices = list(choices)
        self.users: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for index, node in enumerate(problem.nodes):
            for position, value in enumerate(node.operands):
                self.users.setdefault(value, []).append((index, position))
        self.tied: dict[int, list[int]] = {}
        for tie in problem.ties:
            self.tied.setdefault(tie.first, []).append(tie.second)
        self.is_output = {tie.second for tie in problem.ties}

    def of_node(self, index: int) -> list[tuple[int, float]]:
        """Return every choice of a node and the seconds the step gains or loses by it.

        A parameter takes its gradient along; the other nodes stay as they are.
        """
        kept = self._around({index: self.choices[index]})
        found: list[tuple[int, float]] = []
        for choice in range(len(self.problem.nodes[index].choices)):
            changed = self._with_ties(index, choice)
            if changed is not None:
                around = self._around(changed)
                now = (
                    kept
                    if len(changed) == 1
                    else self._around({n: self.choices[n] for n in changed})
                )
                found.append((choice, around - now))
        return sorted(found, key=lambda pair: pair[1])

    def _with_ties(self, index: int, choice: int) -> dict[int, int] | None:
        changed = {index: choice}
        stored = self.problem.nodes[index].choices[choice]
        for other in self.tied.get(index, ()):
            wanted = made_placement(stored, 0)
            options = self.problem.nodes[other].choices
            fitting = [
                i for i, o in enumerate(options) if o.signature.operands[0] == wanted
            ]
            if not fitting:
                return None
            changed[other] = fitting[0]
        return changed

    def parts_of(self, index: int, choice: int, box_bytes: BoxBytes) -> Parts:
        """Return what of a choice's price is what; see ``of_node``.

        Raises:
            KeyError: for a choice that no tie allows.
        """
        changed = self._with_ties(index, choice)
        if changed is None:
            raise KeyError(choice)
        kept = {n: self.choices[n] for n in changed}
        compute_s, sent, held = (
            after - before
            for after, before in zip(
                self._parts(changed, box_bytes),
                self._parts(kept, box_bytes),
                strict=True,
            )
        )
        return Parts(compute_s, int(sent), int(held))

    def _parts(
        self, changed: dict[int, int], box_bytes: BoxBytes
    ) -> tuple[float, int, int]:
        mesh, sent, held, compute_s = self.problem.mesh, 0, 0, 0.0
        for boxed in self._boxed(changed):
            sent += box_bytes(*boxed)
        for index, choice in changed.items():
            node = self.problem.nodes[index]
            taken = node.choices[choice]
            compute_s += taken.seconds - taken.broken_s
            for result, type_ in enumerate(node.result_types):
                if type_ is not None:
                    placement = made_placement(taken, result)
                    numel = largest_shard_numel(type_.shape, placement, mesh)
                    held += numel * type_.dtype.itemsize
        return compute_s, sent, held

    def _around(self, changed: dict[int, int]) -> float:
        """Return the seconds of the changed nodes and of all boxings they touch."""
        nodes = self.problem.nodes
        total = sum(
            nodes[index].choices[choice].seconds for index, choice in changed.items()
        )
        for boxed in self._boxed(changed):
            total += self.problem.box_seconds(*boxed)
        return total

    def _boxed(
        self, changed: dict[int, int]
    ) -> Iterator[tuple[TensorType, Placement, Placement]]:
        """Yield the boxings that the changed nodes touch: of what, from and to."""
        nodes = self.problem.nodes

        def chosen(index: int) -> int:
            return changed.get(index, self.choices[index])

        values: set[tuple[int, int]] = set()
        for index in changed:
            node = nodes[index]
            values.update(node.operands)
            values.update((index, result) for result in range(len(node.result_types)))
        for source, result in sorted(values):
            type_ = nodes[source].result_types[result]
            if type_ is None:
                continue
            made = made_placement(nodes[source].choices[chosen(source)], result)
            wanted: set[Placement] = set()
            for user, position in self.users.get((source, result), ()):
                signature = nodes[user].choices[chosen(user)].signature
                wanted.add(signature.operands[position])
            for want in wanted:
                if want != made:
                    yield type_, made, want
