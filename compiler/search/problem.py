"""The search problem: which signature each node takes, and what that costs.

The cost of an assignment is the compute time of every node, with the prices of the soft
pins that it breaks, plus, for every tensor,
one boxing to each *distinct* placement that its consumers want and that differs from
the placement in which it is made: consumers that want the same placement share it, if
they want it equally often in a step.

    cost = sum_n seconds[n, choice]
         + sum_t sum_{(k, w) in wanted(t), w != made(t)}
               k box_seconds(type(t), made(t), w)

``cost_of`` is the one function that prices an assignment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Placement
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.search.edges import Edges
from partita.compiler.search.held import Held
from partita.compiler.search.model import Floats, Ints
from partita.compiler.search.numbering import numbered, starts_of


@dataclass(frozen=True, slots=True)
class Choice:
    """One signature that a node may take, and what that costs.

    Attributes:
        signature: the placements of operands and results.
        seconds: the compute time on one device, and ``broken_s``.
        broken_s: the prices of the soft pins that it breaks, which no step takes.
        held: of a parameter that is trained, how it is held apart from its storage.
    """

    signature: Signature
    seconds: float
    broken_s: float = 0.0
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class SearchNode:
    """A node and all that it may choose from; a pinned node has fewer choices.

    Attributes:
        key: the node's stable key, for messages.
        choices: what it may take.
        operands: per operand, the node that makes it and which of its results.
        result_types: one per result, ``None`` for a result that is no tensor.
        times: how often in a step it takes its operands: in every microbatch, or once.
    """

    key: str
    choices: tuple[Choice, ...]
    operands: tuple[tuple[int, int], ...]
    result_types: tuple[TensorType | None, ...]
    times: int = 1


@dataclass(frozen=True, slots=True)
class Tie:
    """Two nodes bound to one placement: ``second`` hands on what ``first`` says.

    It holds a gradient to the placement in which its parameter has it complete
    (``tied_placement``), and a buffer that is written to the one in which it came.
    """

    first: int
    second: int


@dataclass(frozen=True, slots=True, eq=False)
class HeldCharges:
    """What holding a tensor is charged, by the choice of the node that makes it.

    Equal where they are the same: there is one of all nodes alike.

    Attributes:
        seconds: per choice, of all that the node makes.
        bytes: per choice, what the tensor takes of a rank.
    """

    seconds: Floats
    bytes: Floats

    def most(self, rate: float, num_bytes: Floats) -> Floats:
        """Return what is left of a charge at most, of what so many bytes are held.

        Whoever holds less than the tensor was charged for was given back the rest, at
        so many seconds per byte.
        """
        less = np.maximum(self.bytes[:, None] - num_bytes[None, :], 0.0)
        left = self.seconds[:, None] - rate * less
        return np.maximum(left.max(axis=0), 0.0)


class LetGo(NamedTuple):
    """What a use may let go of: seconds per byte, and what was charged for it."""

    rate: float
    charged: HeldCharges


@dataclass(frozen=True, slots=True)
class HeldPrices:
    """What it costs to hold tensors, as far as one node's choice does not say it.

    A copy that both halves of the step want is held between them, or boxed twice: it
    costs the less of the two, beyond what its source is charged already. A use that
    boxes a tensor to a smaller copy may let go of the tensor: it is given back what the
    copy takes less, but no more than was charged for holding the tensor.

    Attributes:
        copies: seconds per byte of copies held between the halves, by tensor.
        sources: how much memory, in parts of its own size, a tensor is charged for:
            more than 1 for a view of something larger, 0 for what enters.
        uses: what a use, a node and its operand, may let go of.
        in_backward: per node, whether it runs in the backward.
    """

    copies: Mapping[tuple[int, int], float]
    sources: Mapping[tuple[int, int], float]
    uses: Mapping[tuple[int, int], LetGo]
    in_backward: tuple[bool, ...]


Prices = Callable[[TensorType, Placement, Placement], float]
"""The seconds of a boxing: of which tensor, as it is made, as it is wanted."""


@runtime_checkable
class PriceTables(Protocol):
    """Prices of boxings that are known many at once."""

    def __call__(self, type: TensorType, made: Placement, wanted: Placement) -> float:
        """Return the seconds of one boxing."""
        ...

    def table(
        self, type: TensorType, made: Sequence[Placement], wanted: Sequence[Placement]
    ) -> Floats:
        """Return the seconds from each placement that is made to each that is wanted.

        Nothing where both are the same.
        """
        ...


@dataclass(frozen=True)
class Problem:
    """Nodes with their choices, the ties between them, and the price of a boxing.

    ``box_seconds(type, made, wanted)`` is asked for differing placements only;
    infinity means that there is no such boxing. ``held`` prices memory as well, which
    ``cost_of`` leaves out. What is counted of the nodes is kept, so there are no slots.
    """

    nodes: tuple[SearchNode, ...]
    ties: tuple[Tie, ...]
    mesh: Mesh
    box_seconds: Prices
    held: HeldPrices | None = None

    def __post_init__(self) -> None:
        distinct = {  # equal nodes share their choices
            (id(node.choices), len(node.operands), len(node.result_types)): node
            for node in self.nodes
        }
        for node in distinct.values():
            for choice in node.choices:
                signature = choice.signature
                assert len(signature.operands) == len(node.operands), node.key
                assert len(signature.results) == len(node.result_types), node.key
                assert 0.0 <= choice.seconds < inf, (node.key, choice.seconds)

    @cached_property
    def edges(self) -> Edges:
        """The uses of tensors by the nodes."""
        return Edges.of([node.operands for node in self.nodes])

    @cached_property
    def first(self) -> Ints:
        """Tensors are counted: per node its first one, and behind the last all."""
        made = [len(node.result_types) for node in self.nodes]
        return starts_of(np.array(made, dtype=np.int64))

    @cached_property
    def times(self) -> Ints:
        """How often in a step each node takes its operands."""
        times = [node.times for node in self.nodes]
        return np.array(times, dtype=np.int64)

    @cached_property
    def offered(self) -> Ints:
        """Per node a number of its choices and times: nodes alike share one tuple."""
        known: dict[int, int] = {}
        ids = [id(node.choices) for node in self.nodes]
        offers = [known.setdefault(each, len(known)) for each in ids]
        return numbered(np.array(offers, dtype=np.int64), self.times)


def check_operands(problem: Problem) -> None:
    """Check that nodes use tensors of others; new prices do not change that."""
    edges, nodes = problem.edges, problem.nodes
    own = edges.user[edges.user == edges.source]
    assert not own.size, f"{nodes[own[0]].key} uses itself"
    others = (edges.result < 0) | (edges.result >= np.diff(problem.first)[edges.source])
    assert not others.any(), (
        f"{nodes[edges.user[others][0]].key} uses what nobody makes"
    )
    made = [type_ is not None for node in nodes for type_ in node.result_types]
    is_tensor = np.array(made, dtype=np.bool_)
    none = edges.user[~is_tensor[problem.first[edges.source] + edges.result]]
    assert not none.size, f"{nodes[none[0]].key} uses what is no tensor"


def price_table(
    price: Prices,
    type_: TensorType,
    made: Sequence[Placement],
    wanted: Sequence[Placement],
) -> Floats:
    """Return the seconds of boxing a tensor from each placement to each."""
    if isinstance(price, PriceTables):
        return price.table(type_, made, wanted)
    rows = [[0.0 if a == b else price(type_, a, b) for b in wanted] for a in made]
    return np.array(rows, dtype=np.float64)


def made_placement(choice: Choice, result: int) -> Placement:
    """Return the placement in which ``choice`` makes a result that is a tensor."""
    placement = choice.signature.results[result]
    assert placement is not None
    return placement


def tied_placement(choice: Choice) -> Placement:
    """Return in which placement what is tied to a node leaves, if it chooses so."""
    return made_placement(choice, 0) if choice.held is None else choice.held.gradient


def cost_of(problem: Problem, choices: Sequence[int]) -> float:
    """Return the cost in seconds of an assignment: one choice index per node.

    Infinity when it breaks a tie or needs a boxing that does not exist.
    """
    chosen = [
        node.choices[index] for node, index in zip(problem.nodes, choices, strict=True)
    ]
    for tie in problem.ties:
        if (
            tied_placement(chosen[tie.first])
            != chosen[tie.second].signature.operands[0]
        ):
            return inf
    wanted: dict[tuple[int, int, int], set[Placement]] = {}
    for node, choice in zip(problem.nodes, chosen, strict=True):
        for value, want in zip(node.operands, choice.signature.operands, strict=True):
            source, result = value
            made = chosen[source].signature.results[result]
            if made is not want and made != want:
                wanted.setdefault((source, result, node.times), set()).add(want)
    total = sum(choice.seconds for choice in chosen)
    for key, wants in sorted(wanted.items(), key=lambda item: item[0]):
        source, result, times = key
        made = made_placement(chosen[source], result)
        type_ = problem.nodes[source].result_types[result]
        assert type_ is not None
        # Sorted, so that equal assignments have equal sums to the last bit.
        prices = (problem.box_seconds(type_, made, want) for want in wants)
        total += times * sum(sorted(prices))
    return total
