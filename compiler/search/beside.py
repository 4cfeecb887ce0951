"""The search problem with sums that pass beside computing at the least they can take.

A sum that only leaves the program takes nothing but what it slows computing by, if
there is enough of that left to do (simulate/beside.py). Sums on several links may pass
at once, and slow it once: each has its part of that. With all of them priced so, a plan
takes no less than its price but for what sums save beside other messages, on another
link, and the cheapest assignment gives a bound for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.collectives import CollectiveKind, axis_seconds
from partita.compiler.cost.step import step_wire_bytes
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.fold import Fold
from partita.compiler.search.model import Floats
from partita.compiler.search.problem import Problem, SearchNode, price_table


class Leaving(TensorType):
    """The type of a tensor that nothing in the program uses."""

    __slots__ = ()


@dataclass(frozen=True)
class SumsBeside:
    """The problem with such sums at their least, and what that says of plans.

    Sums slow computing, but no message on another link. What that saves is not in the
    prices, since it depends on all other messages.

    Attributes:
        fold: the problem, folded as it was.
        hardware: what it is priced on.
    """

    fold: Fold
    hardware: Hardware

    @classmethod
    def of(cls, fold: Fold, hardware: Hardware) -> SumsBeside | None:
        """Return it for the problem of ``fold``; ``None`` if all prices stay."""
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
        priced = replace(problem, nodes=nodes, box_seconds=prices)
        return cls(fold.with_prices(priced), hardware)

    def least_of(self, choices: Sequence[int]) -> float:
        """Return seconds that a plan with these choices takes at the least."""
        seconds = self.fold.cost_of(choices)
        each = zip(self.fold.problem.nodes, choices, strict=True)
        computing_s = sum([node.choices[choice].seconds for node, choice in each])
        return seconds - self._saved(seconds - computing_s)

    def least_below(self, bound_s: float, known_s: float) -> float:
        """Return seconds that plans take at the least, of those no slower than known.

        Args:
            bound_s: what no assignment is cheaper than.
            known_s: what a known plan takes; it may be infinite.
        """
        computing_s = self._least_computing_s
        saved_s = self._saved(max(0.0, known_s - computing_s))
        return max(computing_s, bound_s - saved_s)

    def _saved(self, messages_s: float) -> float:
        """Return what sums may take less beside so many seconds of other messages."""
        links = _links(self.fold.problem.mesh, self.hardware)
        return (1 - self.hardware.overlap) * messages_s if len(links) > 1 else 0.0

    @cached_property
    def _least_computing_s(self) -> float:
        nodes = self.fold.problem.nodes
        least = {
            id(choices): min([choice.seconds for choice in choices])
            for choices in {id(n.choices): n.choices for n in nodes}.values()
        }
        return sum([least[id(node.choices)] for node in nodes])


def _links(mesh: Mesh, hardware: Hardware) -> set[str]:
    """Return the names of the links that messages of a mesh pass on."""
    axes = [axis for axis, size in enumerate(mesh.sizes) if size > 1]
    return {hardware.link(mesh, axis).name for axis in axes}


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
        return self._beside(plain, made, wanted, seconds)

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Floats:
        """Return the seconds from each placement to each."""
        if not isinstance(type, Leaving):
            return price_table(self.problem, type, made, wanted)
        plain = TensorType(type.shape, type.dtype)
        table = price_table(self.problem, plain, made, wanted)
        for row, one in enumerate(made):
            for column, other in enumerate(wanted):
                seconds = float(table[row, column])
                table[row, column] = self._beside(plain, one, other, seconds)
        return table

    def _beside(
        self, type: TensorType, made: Placement, wanted: Placement, seconds: float
    ) -> float:
        """Return what is left of a boxing of a tensor that leaves."""
        if not _sums(made, wanted):
            return seconds
        mesh = self.problem.mesh
        *_, last = cheapest_steps(type, made, wanted, mesh, self.hardware).steps
        if last.collective is not CollectiveKind.ALL_REDUCE:
            return seconds
        wire = step_wire_bytes(type, last, mesh)
        message_s = axis_seconds(last.collective, wire, mesh, last.axis, self.hardware)
        return seconds - message_s + self._slowed * message_s

    @cached_property
    def _slowed(self) -> float:
        """By how many seconds a second of a sum slows computing, at the least."""
        return (1 - self.hardware.overlap) / len(
            _links(self.problem.mesh, self.hardware)
        )


def _sums(made: Placement, wanted: Placement) -> bool:
    """Whether a boxing adds up over an axis, and nothing is left to add up."""
    pairs = zip(made.shardings, wanted.shardings, strict=True)
    return not wanted.has_partial and any(
        isinstance(old, Partial) and isinstance(new, Broadcast) for old, new in pairs
    )
