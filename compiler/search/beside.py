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


def with_sums_beside(fold: Fold, hardware: Hardware) -> Fold | None:
    """Return the problem with such sums at their least; ``None`` if it is the same.

    Its nodes are folded as those of ``fold`` are.
    """
    problem = fold.problem
    results: dict[int, list[int]] = {}
    for own, result in _leave(fold) if hardware.overlap else ():
        results.setdefault(own, []).append(result)
    if not results:
        return None
    nodes = tuple(
        _leaving(node, results.get(own, ()))
        for node, own in zip(problem.nodes, fold.class_of, strict=True)
    )
    prices = _BesidePrices(problem, hardware)
    return fold.with_prices(replace(problem, nodes=nodes, box_seconds=prices))


def _leave(fold: Fold) -> set[tuple[int, int]]:
    """Return classes and results that nothing but outputs and views of them want."""
    users: dict[tuple[int, int], set[int]] = {}
    for tensor in fold.shared:
        wanting = users.setdefault((tensor.source, tensor.result), set())
        wanting |= {user for user, _ in tensor.users}
    nodes = [fold.problem.nodes[first] for first, *_ in fold.members]
    views = {own for own, node in enumerate(nodes) if _is_view(node)}
    inside = views
    while inside:
        inside = views & {own for (own, _), each in users.items() if not each <= views}
        views -= inside
    return {tensor for tensor, wanting in users.items() if wanting <= views}


def _is_view(node: SearchNode) -> bool:
    return len(node.operands) == 1 and not any(c.seconds for c in node.choices)


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
