"""What the step would cost if one node chose otherwise and all others did not."""

from __future__ import annotations

from collections.abc import Sequence

from partita.compiler.ir.sbp import Placement
from partita.compiler.search.problem import Problem, made_placement


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

    def _around(self, changed: dict[int, int]) -> float:
        """Return the seconds of the changed nodes and of all boxings they touch."""
        nodes = self.problem.nodes

        def chosen(index: int) -> int:
            return changed.get(index, self.choices[index])

        total = 0.0
        values: set[tuple[int, int]] = set()
        for index, choice in changed.items():
            node = nodes[index]
            total += node.choices[choice].seconds
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
                    total += self.problem.box_seconds(type_, made, want)
        return total
