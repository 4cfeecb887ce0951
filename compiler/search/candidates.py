"""What each node may choose from: its signatures, and the time each takes.

Nodes that make equal calls share one list, so that a deep model costs little more
than one layer of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

from torch import fx

from partita.compiler.cost.compute import op_seconds
from partita.compiler.errors import BadPlacement
from partita.compiler.hardware.profile import Hardware
from partita.compiler.ir.layout import largest_shard_numel, shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Program
from partita.compiler.ir.sbp import Broadcast, Placement, Sharding, Split
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.calls import call_of, rule_and_factors
from partita.compiler.rules.factors import Factors
from partita.compiler.rules.rule import Call, Rule, RuleSet
from partita.compiler.rules.segments import find_segmentations
from partita.compiler.rules.signatures import Segments, axis_options, combinations
from partita.compiler.search.problem import Choice

SegmentsByFactor = Mapping[str, frozenset[Segments]]


def flops_of(rule: Rule, factors: Factors, ways: Mapping[str, int]) -> float:
    """Return the flops of one rank's share; 0 for ops the table gives none for."""
    if not rule.flops:
        return 0.0
    total = 1.0
    for word in rule.flops.split():
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


@dataclass(frozen=True)
class Priced:
    """One signature with its time on one rank and how many ways its work is split."""

    choice: Choice
    flops: float
    ways: int


class Candidates:
    """The signatures that every node of a program may take on a mesh.

    ``unknown`` are the ops that the table lacks, with the keys of their nodes.
    """

    def __init__(
        self, program: Program, rules: RuleSet, mesh: Mesh, hardware: Hardware
    ) -> None:
        self.program = program
        self.rules = rules
        self.mesh = mesh
        self.hardware = hardware
        self.calls = {node: call_of(node) for node in program.calls()}
        self.read: dict[fx.Node, tuple[Rule, Factors]] = {}
        memo: dict[Call, tuple[Rule, Factors]] = {}
        for node, call in self.calls.items():
            if call not in memo:
                memo[call] = rule_and_factors(rules, call)
            self.read[node] = memo[call]
        self._priced: dict[tuple[Call, object], tuple[Priced, ...]] = {}

    @cached_property
    def segmentations(self):
        """The segmented splits worth trying, per factor and per dim."""
        factors = {node: found for node, (_, found) in self.read.items()}
        return find_segmentations(self.program, factors)

    @cached_property
    def unknown(self) -> dict[str, list[fx.Node]]:
        """The nodes whose op the table lacks, by op."""
        found: dict[str, list[fx.Node]] = {}
        for node, call in self.calls.items():
            if self.rules.get(call.op) is None:
                found.setdefault(call.op, []).append(node)
        return found

    def of_call(self, node: fx.Node) -> tuple[Priced, ...]:
        """Return what a call may take, all-``B`` first, each signature once."""
        call = self.calls[node]
        rule, factors = self.read[node]
        segments = self.segmentations.of_factor.get(node, {})
        key = (call, tuple(sorted(segments.items())))
        if key not in self._priced:
            self._priced[key] = self._price(call, rule, factors, segments)
        return self._priced[key]

    def _price(
        self, call: Call, rule: Rule, factors: Factors, segments: SegmentsByFactor
    ) -> tuple[Priced, ...]:
        options = axis_options(rule, factors, segments)
        dtypes = [t.dtype for t in (*call.results, *call.operands) if t is not None]
        best: dict[Signature, Priced] = {}
        for combination in combinations(factors, options, self.mesh):
            signature, ways = combination.signature, dict(combination.ways)
            flops = flops_of(rule, factors, ways)
            seconds = 0.0
            if not rule.free:
                touched = bytes_of(call, signature, self.mesh)
                seconds = op_seconds(flops, touched, dtypes[0], self.hardware.device)
            split = prod(ways.values())
            priced = Priced(Choice(signature, seconds), flops, split)
            known = best.get(signature)
            if known is None or seconds < known.choice.seconds:
                best[signature] = priced
        return tuple(best.values())

    def of_tensor(
        self, type_: TensorType, segments: Mapping[int, frozenset[Segments]]
    ) -> tuple[Placement, ...]:
        """Return the placements without ``P`` in which a tensor may be stored.

        Args:
            type_: the logical type.
            segments: per dim, the segmentations worth trying besides none.
        """
        options: list[Sharding] = [Broadcast()]
        for dim, size in enumerate(type_.shape):
            if size > 1:
                options.append(Split(dim))
                options += [Split(dim, s) for s in sorted(segments.get(dim, ()))]
        found: list[Placement] = []
        per_axis = [options if size > 1 else options[:1] for size in self.mesh.sizes]
        for shardings in product(*per_axis):
            try:
                placement = Placement(shardings)
            except BadPlacement:
                continue
            if self._every_rank_has_some(type_, placement):
                found.append(placement)
        return tuple(found)

    def _every_rank_has_some(self, type_: TensorType, placement: Placement) -> bool:
        last = tuple(size - 1 for size in self.mesh.sizes)
        return prod(shard_shape(type_.shape, placement, self.mesh, last)) > 0
