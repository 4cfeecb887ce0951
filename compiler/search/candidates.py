"""What each node may choose from: its signatures, and the time each takes.

Nodes that make equal calls share one list, so that a deep model costs little more
than one layer of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import prod

from torch import fx

from partita.compiler.capture.reading import Reading
from partita.compiler.cost.boxing import cheapest_steps
from partita.compiler.cost.compute import op_seconds
from partita.compiler.cost.products import local_sizes, product_of
from partita.compiler.errors import BadPlacement
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.layout import largest_shard_numel, shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Program, Value, info
from partita.compiler.ir.sbp import Broadcast, Placement, Sharding, Split
from partita.compiler.ir.signature import AxisSignature, Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.document import Node
from partita.compiler.rules.apart import Apart
from partita.compiler.rules.calls import call_of, rule_and_factors
from partita.compiler.rules.expansion import Expansion
from partita.compiler.rules.factors import Factors
from partita.compiler.rules.inline import inline
from partita.compiler.rules.rule import Call, Rule, RuleSet
from partita.compiler.rules.segments import Segmentations, find_segmentations
from partita.compiler.rules.signatures import (
    Combination,
    Segments,
    axis_options,
    combinations,
    ways_in,
)
from partita.compiler.rules.walks import chunked, chunkings, expanded_combinations
from partita.compiler.search.edges import Edges
from partita.compiler.search.known_prices import KnownPrices
from partita.compiler.search.problem import Choice
from partita.compiler.search.repeats import alike
from partita.compiler.search.within import NOTHING_DECIDED, Within

SegmentsByFactor = Mapping[str, frozenset[Segments]]


def flops_of(factors: Factors, ways: Mapping[str, int]) -> float:
    """Return the flops of one rank's share; 0 for ops the table gives none for."""
    if not factors.flops:
        return 0.0
    total = 1.0
    for word in factors.flops.split():
        if word.isdecimal():
            total *= int(word)
        else:
            total *= -(-factors.all_sizes[word] // ways.get(word, 1))
    return total


def bytes_of(call: Call, signature: Signature, mesh: Mesh) -> int:
    """Return the bytes of operands and results that the largest rank touches."""
    tensors = [
        *zip(call.operands, signature.operands, strict=True),
        *zip(call.results, signature.results, strict=True),
    ]
    return sum(
        largest_shard_numel(t.shape, placement, mesh) * t.dtype.itemsize
        for t, placement in tensors
        if t is not None and placement is not None
    )


_RANDOM, _STREAM = "partita.random.default", 3


def _alike(calls: Mapping[fx.Node, Call]) -> dict[fx.Node, Call]:
    """Return the calls, those that differ in the number of their draw as one object."""
    known: dict[Call, Call] = {}
    found: dict[fx.Node, Call] = {}
    for node, call in calls.items():
        if call.op == _RANDOM:
            args = *call.args[:_STREAM], 0, *call.args[_STREAM + 1 :]
            call = replace(call, args=args)
            call = known.setdefault(call, call)
        found[node] = call
    return found


@dataclass(frozen=True)
class Priced:
    """One signature with its time on one rank and how many ways its work is split.

    ``parts`` are the signatures of the op's parts where it is taken apart for this.
    """

    choice: Choice
    flops: float
    ways: int
    parts: tuple[Signature, ...] = ()


class Candidates:
    """The signatures that every node of a program may take on a mesh.

    Their seconds are those of a whole step, of all its microbatches. ``unknown`` are
    the ops that the table lacks, with the keys of their nodes. What is ``known`` is not
    priced again, if it is of the same mesh, hardware and number of microbatches.
    ``drafted`` are nodes as a plan has them that was drafted last, and what they use
    there, for others that choose as it did. ``reading`` is that of the program, where
    it was read already.
    """

    def __init__(
        self,
        program: Program,
        rules: RuleSet,
        mesh: Mesh,
        hardware: Hardware,
        within: Within = NOTHING_DECIDED,
        known: KnownPrices | None = None,
        reading: Reading | None = None,
    ) -> None:
        count = program.in_time.count
        if known is None or not known.are_of(rules, mesh, hardware, count):
            known = KnownPrices(rules, mesh, hardware, count)
        self.known = known
        self.program = program
        self.within = within
        self.rules = rules
        self.mesh = mesh
        self.hardware = hardware
        self.reading = reading or Reading.of(program)
        self.calls = _alike(self.reading.calls)
        self.read: dict[fx.Node, tuple[Rule, Factors]] = {}
        self._label: dict[fx.Node, int] = {}
        memo: dict[int, tuple[int, tuple[Rule, Factors]]] = {}
        for node, call in self.calls.items():
            read = memo.get(id(call))
            if read is None:
                read = memo[id(call)] = len(memo), rule_and_factors(rules, call)
            self._label[node], self.read[node] = read
        self._segments_key: dict[fx.Node, object] = {}
        self._priced: dict[object, tuple[Priced, ...]] = {}
        self._of_first: dict[fx.Node, tuple[Priced, ...]] = {}
        self._apart: dict[tuple[fx.Node, int], Apart] = {}
        self._in_parts: dict[object, Program] = {}
        self.drafted: dict[fx.Node, tuple[Node, Sequence[Value]]] = {}
        self._stored: dict[object, tuple[Placement, ...]] = {}

    @property
    def used(self) -> Mapping[fx.Node, list[Value]]:
        """The operands of every node."""
        return self.reading.used

    @cached_property
    def _stand_in(self) -> dict[fx.Node, fx.Node]:
        """Of nodes in the same place of equal blocks, the first."""
        nodes = list(self.used)
        types: dict[object, int] = {}
        labels = [
            self._label[node]
            if node in self._label
            else types.setdefault(info(node).types, -1 - len(types))
            for node in nodes
        ]
        calls = [index for index, node in enumerate(nodes) if node in self._label]
        first: dict[int, fx.Node] = {}
        edges = Edges.of(self.reading.sources)
        classes = alike(labels, edges, calls)
        return {
            node: first.setdefault(one, node)
            for node, one in zip(nodes, classes, strict=True)
        }

    @cached_property
    def _segmentations(self) -> Segmentations:
        factors = {node: found for node, (_, found) in self.read.items()}
        return find_segmentations(factors, self._stand_in)

    def segments_of(self, value: Value, dim: int) -> frozenset[Segments]:
        """Return the segmentations worth trying for a dim of a tensor."""
        value = Value(self._stand_in[value.node], value.index)
        return self._segmentations.of_dim.get((value, dim), frozenset())

    @cached_property
    def derived(self) -> dict[Rule, list[fx.Node]]:
        """The rows that were derived for calls of ops without one, and their nodes."""
        found: dict[Rule, list[fx.Node]] = {}
        for node, call in self.calls.items():
            rule = self.rules.of_call(call)
            if rule is not None and self.rules.get(call.op) is None:
                found.setdefault(rule, []).append(node)
        return found

    @cached_property
    def unknown(self) -> dict[str, list[fx.Node]]:
        """The nodes whose op the table lacks, by op."""
        found: dict[str, list[fx.Node]] = {}
        for node, call in self.calls.items():
            if self.rules.of_call(call) is None:
                found.setdefault(call.op, []).append(node)
        return found

    def of_call(self, node: fx.Node) -> tuple[Priced, ...]:
        """Return what a call may take, all-``B`` first, each signature once."""
        first = self._stand_in[node]
        if self.within.axes:
            return self._of_call(node, first)
        if first not in self._of_first:
            self._of_first[first] = self._of_call(node, first)
        return self._of_first[first]

    def _of_call(self, node: fx.Node, first: fx.Node) -> tuple[Priced, ...]:
        segments = self._segmentations.of_factor.get(first, {})
        if first not in self._segments_key:
            self._segments_key[first] = tuple(sorted(segments.items()))
        fixed = self.within.of_node(info(node).key)
        key = self._label[node], self._segments_key[first], tuple(fixed.items())
        if key not in self._priced:
            shared = self.calls[node], *key[1:]
            if shared not in self.known.choices:
                self.known.choices[shared] = self._price(node, segments, fixed)
            self._priced[key] = self.known.choices[shared]
        return self._priced[key]

    def expansion_of(self, node: fx.Node, signature: Signature) -> Expansion:
        """Return the parts of a call that is taken apart for ``signature``."""
        rule, factors = self.read[node]
        call = chunked(self.calls[node], factors, signature, self.mesh)
        found = self._expansion(rule, call)
        assert found is not None
        return found

    def apart(self, node: fx.Node, expansion: Expansion) -> Apart:
        """Return the parts of a call; they are the same nodes each time."""
        key = node, id(expansion)
        found = self._apart.get(key)
        if found is None:
            found = self._apart[key] = Apart(node, expansion)
        return found

    def in_parts(self, expansions: Mapping[str, Expansion]) -> Program:
        """Return the program with ``expansions`` in place of nodes, by their keys.

        What is compared is often taken apart alike: it is one program, not to be
        changed.
        """
        key = tuple([(node, id(expansion)) for node, expansion in expansions.items()])
        found = self._in_parts.get(key)
        if found is None:
            found = self._in_parts[key] = inline(self.program, expansions)
        return found

    def _expansion(self, rule: Rule, call: Call) -> Expansion | None:
        known = self.known.expansions
        if call not in known:
            known[call] = Expansion.of(self.rules, rule, call)
        return known[call]

    def _price(
        self,
        node: fx.Node,
        segments: SegmentsByFactor,
        fixed: Mapping[int, AxisSignature],
    ) -> tuple[Priced, ...]:
        call, (rule, factors) = self.calls[node], self.read[node]
        options = axis_options(rule, factors, segments)
        found: list[tuple[Combination, float]] = [
            (c, self._seconds(call, rule, factors, c))
            for c in combinations(factors, options, self.mesh, fixed)
        ]
        if rule.expand is not None and factors.expanded:
            for own in chunkings(call, factors, self.mesh):
                expansion = self._expansion(rule, own)
                if expansion is None:
                    continue
                found += [
                    (c, self._expanded_seconds(expansion, c))
                    for c in expanded_combinations(
                        expansion, factors, options, segments, self.mesh, fixed
                    )
                ]
        best: dict[Signature, Priced] = {}
        for combination, seconds in found:
            signature, ways = combination.signature, dict(combination.ways)
            known = best.get(signature)
            if known is None or seconds < known.choice.seconds:
                best[signature] = Priced(
                    Choice(signature, seconds),
                    flops_of(factors, ways),
                    prod(ways.values()),
                    combination.parts,
                )
        return tuple(best.values())

    def _seconds(
        self, call: Call, rule: Rule, factors: Factors, combination: Combination
    ) -> float:
        if rule.free:
            return 0.0
        ways = dict(combination.ways)
        return self.call_seconds(call, factors, combination.signature, ways)

    def call_seconds(
        self,
        call: Call,
        factors: Factors,
        signature: Signature,
        ways: Mapping[str, int],
    ) -> float:
        """Return the time of one rank's share of a call, in all of a step."""
        dtypes = [t.dtype for t in (*call.results, *call.operands) if t is not None]
        return self.program.in_time.count * op_seconds(
            flops_of(factors, ways),
            bytes_of(call, signature, self.mesh),
            dtypes[0],
            self.hardware.device,
            call.op,
            product_of(factors, local_sizes(factors, ways)),
        )

    def part_seconds(
        self, expansion: Expansion, part: fx.Node, signature: Signature
    ) -> float:
        """Return the time of one rank's share of one part of an op."""
        rule, factors = expansion.read[part]
        if rule.free:
            return 0.0
        ways = ways_in(factors, signature, self.mesh)
        return self.call_seconds(call_of(part), factors, signature, ways)

    def _expanded_seconds(
        self, expansion: Expansion, combination: Combination
    ) -> float:
        seconds = sum(
            self.part_seconds(expansion, part, signature)
            for part, signature in zip(expansion.parts, combination.parts, strict=True)
        )
        for type_, made, wanted in expansion.moves(
            combination.signature, combination.parts
        ):
            steps = cheapest_steps(type_, made, wanted, self.mesh, self.hardware)
            seconds += self.program.in_time.count * steps.seconds
        return seconds

    def of_tensor(
        self, type_: TensorType, segments: Mapping[int, frozenset[Segments]]
    ) -> tuple[Placement, ...]:
        """Return the placements without ``P`` in which a tensor may be stored.

        Args:
            type_: the logical type.
            segments: per dim, the segmentations worth trying besides none.
        """
        known = type_, tuple(segments.items())
        found = self._stored.get(known)
        if found is None:
            found = self._stored[known] = tuple(self._storages(type_, segments))
        return found

    def _storages(
        self, type_: TensorType, segments: Mapping[int, frozenset[Segments]]
    ) -> Iterator[Placement]:
        options: list[Sharding] = [Broadcast()]
        for dim, size in enumerate(type_.shape):
            if size > 1:
                options.append(Split(dim))
                options += [Split(dim, s) for s in sorted(segments.get(dim, ()))]
        per_axis = [options if size > 1 else options[:1] for size in self.mesh.sizes]
        for shardings in product(*per_axis):
            try:
                placement = Placement(shardings)
            except BadPlacement:
                continue
            if placement.is_broadcast or self._every_rank_has_some(type_, placement):
                yield placement

    def _every_rank_has_some(self, type_: TensorType, placement: Placement) -> bool:
        last = tuple(size - 1 for size in self.mesh.sizes)
        return prod(shard_shape(type_.shape, placement, self.mesh, last)) > 0
