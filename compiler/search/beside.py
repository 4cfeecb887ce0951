"""The search problem with messages that pass beside computing at the least they take.

What nothing waits for takes nothing but what it slows computing by, if there is enough
of that left to do (simulate/beside.py): a gradient that only leaves the program, a
parameter whose gather starts ahead. Messages on several links may pass at once, and
slow it once: each has its part of that. With all of them priced so, a plan takes no
less than its price but for what they save beside other messages, on another link, and
the cheapest assignment gives a bound for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from partita.compiler.cost.boxing_prices import BoxingTables, last_messages
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.buffer_prices import in_buffers
from partita.compiler.search.fold import Fold
from partita.compiler.search.leaving import boxed_once, leaving
from partita.compiler.search.model import Floats
from partita.compiler.search.problem import Prices, SearchNode, price_table
from partita.compiler.search.problem_prices import figures_of


class Unawaited(TensorType):
    """The type of a tensor that nothing needs to wait for when it is boxed.

    It is there from the start, or nothing in the program uses it.
    """

    __slots__ = ()


@dataclass(frozen=True)
class MessagesBeside:
    """The problem with such messages at their least, and what that says of plans.

    They slow computing, but no message on another link. What that saves is not in the
    prices, since it depends on all other messages.

    Attributes:
        fold: the problem, folded as it was.
        hardware: what it is priced on.
    """

    fold: Fold
    hardware: Hardware

    @classmethod
    def of(cls, fold: Fold, hardware: Hardware) -> MessagesBeside | None:
        """Return it for the problem of ``fold``; ``None`` if all prices stay."""
        unawaited = {*leaving(fold), *_enter(fold)}
        if not (unawaited and hardware.overlap):
            return None
        return cls._priced(fold, unawaited, fold.problem.box_seconds, hardware, 0.0)

    @classmethod
    def together(
        cls, fold: Fold, light: Hardware, part: float
    ) -> MessagesBeside | None:
        """Return it with such messages in buffers, of a machine of less latency.

        ``part`` of them takes its time. All else is sent by itself, and takes what it
        takes in ``fold``. So does what enters where nothing starts ahead: messages are
        together only where one wants them all then.
        """
        unawaited = leaving(fold)
        if light.overlap:
            unawaited.update(_enter(fold))
        if not unawaited:
            return None
        return cls._priced(fold, unawaited, in_buffers(fold, light), light, part)

    @classmethod
    def _priced(
        cls,
        fold: Fold,
        unawaited: Set[tuple[int, int]],
        sent: Prices,
        hardware: Hardware,
        part: float,
    ) -> MessagesBeside:
        """Return it with these classes and results priced by ``_BesidePrices``."""
        problem = fold.problem
        prices = _BesidePrices(fold, sent, hardware, part)
        nodes = _marked(fold, unawaited)
        priced = replace(problem, nodes=nodes, box_seconds=prices)
        return cls(boxed_once(fold.with_prices(priced)), hardware)

    def least_below(self, bound_s: float, known_s: float) -> float:
        """Return seconds that plans take at the least, of those no slower than known.

        Args:
            bound_s: what no assignment is cheaper than.
            known_s: what a known plan takes; it may be infinite.
        """
        computing_s = self._least_computing_s
        saved_s = self._saved(max(0.0, known_s - computing_s))
        return max(computing_s, bound_s - saved_s)

    def most_below(self, known_s: float) -> float:
        """Return what assignments cost less than whose plans take less than is known.

        That is as far as these are no faster than all computing at its least.
        """
        return known_s + self._saved(max(0.0, known_s - self._least_computing_s))

    def _saved(self, messages_s: float) -> float:
        """Return what they may take less beside so many seconds of other messages."""
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


def _enter(fold: Fold) -> Iterator[tuple[int, int]]:
    """Yield classes and results that are made of nothing, and that somebody wants."""
    wanted = {(tensor.source, tensor.result) for tensor in fold.shared}
    for own, (first, *_) in enumerate(fold.members):
        node = fold.problem.nodes[first]
        if not node.operands:
            yield from wanted & {(own, at) for at in range(len(node.result_types))}


def _marked(fold: Fold, unawaited: Set[tuple[int, int]]) -> tuple[SearchNode, ...]:
    """Return the nodes, some results of which, by class, nothing waits for."""
    results: dict[int, list[int]] = {}
    for own, result in unawaited:
        results.setdefault(own, []).append(result)
    nodes = list(fold.problem.nodes)
    for own, marked in results.items():
        for index in fold.members[own]:
            node = nodes[index]
            types = _unawaited(node.result_types, marked)
            nodes[index] = SearchNode(
                node.key, node.choices, node.operands, types, node.times
            )
    return tuple(nodes)


def _unawaited(
    types: Sequence[TensorType | None], results: Sequence[int]
) -> tuple[TensorType | None, ...]:
    found = list(types)
    for result in results:
        type_ = found[result]
        assert type_ is not None
        found[result] = Unawaited(type_.shape, type_.dtype)
    return tuple(found)


@dataclass(frozen=True)
class _BesidePrices:
    """The prices of a problem, less what of such messages may be hidden.

    Attributes:
        fold: its problem prices what is waited for.
        sent: prices such messages, before anything of them is hidden.
        hardware: of ``sent``.
        part: of them that is not hidden all the same.
    """

    fold: Fold
    sent: Prices
    hardware: Hardware
    part: float

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        if not isinstance(type, Unawaited):
            return self.fold.problem.box_seconds(type, made, wanted)
        plain = TensorType(type.shape, type.dtype)
        seconds = self.sent(plain, made, wanted)
        return self._beside(plain, made, wanted, seconds)

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Floats:
        """Return the seconds from each placement to each."""
        if not isinstance(type, Unawaited):
            return price_table(self.fold.problem.box_seconds, type, made, wanted)
        plain = TensorType(type.shape, type.dtype)
        table = price_table(self.sent, plain, made, wanted)
        if self.part == 1:
            return table
        return table - self._hidden_part * self._messages.table(plain, made, wanted)

    def _beside(
        self, type: TensorType, made: Placement, wanted: Placement, seconds: float
    ) -> float:
        """Return what is left of a boxing that nothing waits for."""
        if self.part == 1:
            return seconds
        return seconds - self._hidden_part * self._messages(type, made, wanted)

    @cached_property
    def _messages(self) -> BoxingTables:
        """The seconds of the last message of boxings, whatever the ``part``."""
        return figures_of(self.fold, self.hardware, last_messages)

    @property
    def _hidden_part(self) -> float:
        """Of a message, what it does not add to the step."""
        return (1 - self._slowed) * (1 - self.part)

    @cached_property
    def _slowed(self) -> float:
        """By how many seconds a second of one slows computing, at the least."""
        return (1 - self.hardware.overlap) / len(
            _links(self.fold.problem.mesh, self.hardware)
        )
