"""The search problem with sums that pass beside computing at the least they can take.

A sum that only leaves the program takes nothing but what it slows computing by, if
there is enough of that left to do (simulate/beside.py). With all of them priced so, no
plan takes less than its price, and the cheapest assignment is a bound for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.collectives import CollectiveKind, axis_seconds
from partita.compiler.cost.step import step_wire_bytes
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.sbp import Broadcast, Partial, Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.fold import Fold
from partita.compiler.search.problem import Problem, SearchNode


class Leaving(TensorType):
    """The type of a tensor that nothing in the program uses."""

    __slots__ = ()


def with_sums_beside(problem: Problem, hardware: Hardware) -> Fold | None:
    """Return the problem with such sums at their least; ``None`` if it is the same.

    Equal nodes are folded as those of ``problem``.
    """
    fold = Fold.of(problem)
    used = _used_inside(problem)
    made = {
        (source, result) for node in problem.nodes for source, result in node.operands
    }
    of_class = {(fold.class_of[node], result) for node, result in made - used}
    of_class -= {(fold.class_of[node], result) for node, result in used}
    if not (hardware.overlap and of_class):
        return None
    results: dict[int, list[int]] = {}
    for own, result in of_class:
        results.setdefault(own, []).append(result)
    nodes = tuple(
        _leaving(node, results.get(own, ()))
        for node, own in zip(problem.nodes, fold.class_of, strict=True)
    )
    prices = _BesidePrices(problem, hardware)
    return Fold(replace(problem, nodes=nodes, box_seconds=prices), fold.class_of)


def _used_inside(problem: Problem) -> set[tuple[int, int]]:
    """Return the tensors that more than the outputs want, and views that they want."""
    used: set[tuple[int, int]] = set()
    for index in reversed(range(len(problem.nodes))):
        node = problem.nodes[index]
        is_view = len(node.operands) == 1 and not any(c.seconds for c in node.choices)
        is_inside = any((index, r) in used for r in range(len(node.result_types)))
        if is_inside or not is_view:
            used |= set(node.operands)
    return used


def _leaving(node: SearchNode, results: Sequence[int]) -> SearchNode:
    types = list(node.result_types)
    for result in results:
        type_ = types[result]
        assert type_ is not None
        types[result] = Leaving(type_.shape, type_.dtype)
    return replace(node, result_types=tuple(types)) if results else node


@dataclass(frozen=True)
class _BesidePrices:
    """The prices of a problem, less what of a sum that leaves may be hidden."""

    problem: Problem
    hardware: Hardware

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        if not isinstance(type, Leaving):
            return self.problem.box_seconds(type, made, wanted)
        plain = TensorType(type.shape, type.dtype)
        seconds = self.problem.box_seconds(plain, made, wanted)
        if not _sums(made, wanted):
            return seconds
        mesh = self.problem.mesh
        *_, last = cheapest_steps(plain, made, wanted, mesh, self.hardware).steps
        if last.collective is not CollectiveKind.ALL_REDUCE:
            return seconds
        wire = step_wire_bytes(plain, last, mesh)
        message_s = axis_seconds(last.collective, wire, mesh, last.axis, self.hardware)
        return seconds - self.hardware.overlap * message_s


def _sums(made: Placement, wanted: Placement) -> bool:
    """Whether a boxing adds up over an axis, and nothing is left to add up."""
    pairs = zip(made.shardings, wanted.shardings, strict=True)
    return not wanted.has_partial and any(
        isinstance(old, Partial) and isinstance(new, Broadcast) for old, new in pairs
    )
