"""How splits flow through the parts of an op that is taken apart.

When an axis splits a factor of the op, shardings go through the parts from the operands
on: each part takes the option that asks for what it gets, a slice of what is whole
costs nothing, and what comes out partial is reduced where another part uses it. So a
normalized dim is split by the reductions of its statistics, a vocabulary by looking up
the rows that are there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from torch import fx

from partita.compiler.errors import BadPlacement
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.program import Value, operands, value_of
from partita.compiler.ir.sbp import Broadcast, Partial, Sharding, Split
from partita.compiler.ir.signature import AxisSignature, Signature, compose
from partita.compiler.rules.expansion import Expansion
from partita.compiler.rules.factors import Factors, Part
from partita.compiler.rules.rule import Call
from partita.compiler.rules.signatures import (
    Combination,
    Option,
    Segments,
    axis_options,
    fits,
    split_of,
    ways_in,
    ways_of,
)


@dataclass(frozen=True)
class Walk:
    """What each part does on one axis, and how the results leave."""

    options: tuple[Option, ...]
    results: tuple[Sharding | None, ...]


class _Walker:
    """Carries the shardings of one axis from the operands through the parts."""

    def __init__(self, expansion: Expansion) -> None:
        self.expansion = expansion
        self._options: dict[tuple[fx.Node, Segments], tuple[Option, ...]] = {}

    def options(self, part: fx.Node, segments: Segments) -> tuple[Option, ...]:
        known = (part, segments)
        if known not in self._options:
            rule, factors = self.expansion.read[part]
            tried = (
                {f: frozenset({segments}) for f in factors.sizes} if segments else {}
            )
            self._options[known] = axis_options(rule, factors, tried)
        return self._options[known]

    def walk(
        self,
        given: tuple[Sharding, ...],
        wanted: tuple[Sharding | None, ...],
        segments: Segments,
    ) -> Walk | None:
        """Return what the parts do, or ``None`` where they cannot.

        Args:
            given: how the operands come.
            wanted: how results must leave; ``None`` where it is all the same.
            segments: those of the factor that is split.
        """
        made: dict[Value, Sharding | None] = {
            Value(node, 0): sharding
            for node, sharding in zip(self.expansion.operands, given, strict=True)
        }
        leaving = [None if n is None else value_of(n) for n in self.expansion.results]
        asked = {
            value: sharding
            for value, sharding in zip(leaving, wanted, strict=True)
            if value is not None and sharding is not None
        }
        chosen: dict[fx.Node, Option] = {}
        for part in self.expansion.parts:
            option = self._choose(part, made, asked, chosen, segments)
            if option is None:
                return None
            self._take(part, option, made, chosen)
            if not operands(part):  # its users may still ask for pieces of it
                made[Value(part, 0)] = None
        results = tuple(
            None if v is None else self._result(v, made, chosen) for v in leaving
        )
        return Walk(tuple(chosen[part] for part in self.expansion.parts), results)

    def _result(
        self,
        value: Value,
        made: Mapping[Value, Sharding | None],
        chosen: Mapping[fx.Node, Option],
    ) -> Sharding | None:
        if value.node in chosen:
            return chosen[value.node].signature.results[value.index]
        return made[value]

    def _take(
        self,
        part: fx.Node,
        option: Option,
        made: dict[Value, Sharding | None],
        chosen: dict[fx.Node, Option],
    ) -> None:
        chosen[part] = option
        for index, sharding in enumerate(option.signature.results):
            reduced = Broadcast() if isinstance(sharding, Partial) else sharding
            made[Value(part, index)] = reduced
        for value, want in zip(operands(part), option.signature.operands, strict=True):
            if made[value] is None:
                for own in self.options(value.node, option.segments):
                    if own.signature.results[0] == want:
                        chosen[value.node], made[value] = own, want

    def _num_changes(
        self, part: fx.Node, have: list[Sharding | None], signature: AxisSignature
    ) -> int | None:
        """Return how many operands are sliced or moved; ``None`` where one cannot."""
        count = 0
        pairs = zip(operands(part), have, signature.operands, strict=True)
        for value, found, want in pairs:
            if isinstance(want, Partial):
                return None
            if found is None or found == want:
                continue
            if not isinstance(found, Broadcast) and not self._is_moved(value):
                return None
            count += 1
        return count

    def _is_moved(self, value: Value) -> bool:
        if value.node not in self.expansion.read:
            return False
        return self.expansion.read[value.node][1].moved[value.index]

    def _choose(
        self,
        part: fx.Node,
        made: Mapping[Value, Sharding | None],
        asked: Mapping[Value, Sharding],
        chosen: Mapping[fx.Node, Option],
        segments: Segments,
    ) -> Option | None:
        """Return the option that takes what is there, with the fewest slices."""
        have = [made[value] for value in operands(part)]
        options = self.options(part, segments)
        results = {v.index: sharding for v, sharding in asked.items() if v.node is part}
        if not results and all(h is None or isinstance(h, Broadcast) for h in have):
            return options[0]
        best: tuple[int, Option] | None = None
        for option in options:
            signature = option.signature
            if any(signature.results[i] != want for i, want in results.items()):
                continue
            slices = self._num_changes(part, have, signature)
            if slices is not None and (best is None or slices < best[0]):
                best = slices, option
        return best[1] if best else None


def chunkings(call: Call, factors: Factors, mesh: Mesh) -> Iterator[Call]:
    """Yield the call for each way to cut the factors whose parts go by that.

    That is once, as it is, where it has none.
    """
    found: dict[tuple[tuple[str, int], ...], None] = {}
    if factors.expanded - factors.chunked:
        found[()] = None
    offered = (None, *sorted(factors.chunked))
    for chosen in product(*(offered if n > 1 else (None,) for n in mesh.sizes)):
        ways: dict[str, int] = {}
        for factor, size in zip(chosen, mesh.sizes, strict=True):
            if factor is not None:
                ways[factor] = ways.get(factor, 1) * size
        if ways:
            found[tuple(sorted(ways.items()))] = None
    for chunks in found:
        yield replace(call, chunks=chunks)


def chunked(call: Call, factors: Factors, signature: Signature, mesh: Mesh) -> Call:
    """Return the call with the chunks that ``signature`` cuts on ``mesh``."""
    ways = ways_in(factors, signature, mesh)
    own = sorted((name, n) for name, n in ways.items() if name in factors.chunked)
    return replace(call, chunks=tuple(own))


def expanded_combinations(
    expansion: Expansion,
    factors: Factors,
    options: tuple[Option, ...],
    segments: Mapping[str, frozenset[Segments]],
    mesh: Mesh,
    fixed: Mapping[int, AxisSignature] | None = None,
) -> Iterator[Combination]:
    """Yield the legal combinations of which an axis needs the op taken apart.

    Args:
        expansion: the parts of the call.
        factors: those of its row.
        options: what an axis may do with the op as it is.
        segments: the segmentations worth trying per factor.
        mesh: the ranks.
        fixed: what some axes do.
    """
    walker = _Walker(expansion)
    walks: list[tuple[Option, Walk, bool]] = []
    for option in options:
        wanted = tuple(
            s if isinstance(s, Split) else None for s in option.signature.results
        )
        if not any(isinstance(s, Partial) for s in option.signature.operands):
            walk = walker.walk(option.signature.operands, wanted, option.segments)
            if walk is not None:
                walks.append((option, walk, False))
    chunks = expansion.chunks
    for factor in sorted(factors.expanded):
        if factor in factors.chunked:
            found = _expanded_option(walker, factors, factor, ())
            if factor in chunks and found is not None:
                walks.append((*found, True))
            continue
        for tried in ((), *sorted(segments.get(factor, ()))):
            found = _expanded_option(walker, factors, factor, tried)
            if found is not None:
                walks.append((*found, True))
    per_axis = [walks if size > 1 else walks[:1] for size in mesh.sizes]
    for axis, own in (fixed or {}).items():
        per_axis[axis] = [walk for walk in per_axis[axis] if _does(walk, own)]
    for chosen in product(*per_axis):
        ways = dict(ways_of(tuple(option for option, _, _ in chosen), mesh))
        own = {name: n for name, n in ways.items() if name in factors.chunked}
        if own == chunks and any(is_expanded for _, _, is_expanded in chosen):
            combination = _combine(expansion, factors, chosen, mesh)
            if combination is not None:
                yield combination


def _does(walked: tuple[Option, Walk, bool], wanted: AxisSignature) -> bool:
    option, walk, _ = walked
    return AxisSignature(option.signature.operands, walk.results) == wanted


def _expanded_option(
    walker: _Walker, factors: Factors, factor: str, segments: Segments
) -> tuple[Option, Walk] | None:
    if factors.sizes.get(factor, 1) < 2:
        return None
    given = tuple(
        _split(parts, factor, segments) or Broadcast() for parts in factors.operands
    )
    wanted = tuple(_split(parts or (), factor, segments) for parts in factors.results)
    walk = walker.walk(given, wanted, segments)
    if walk is None:
        return None
    return Option(AxisSignature(given, walk.results), factor, segments), walk


def _split(parts: tuple[Part, ...], factor: str, segments: Segments) -> Split | None:
    found = [part for part in parts if part.factor == factor]
    return split_of(found[0], segments) if len(found) == 1 else None


def _combine(
    expansion: Expansion,
    factors: Factors,
    chosen: tuple[tuple[Option, Walk, bool], ...],
    mesh: Mesh,
) -> Combination | None:
    options = tuple(option for option, _, _ in chosen)
    walks = tuple(walk for _, walk, _ in chosen)
    if not fits(factors, options, mesh):
        return None
    parts: list[Signature] = []
    try:
        signature = compose(
            tuple(
                AxisSignature(option.signature.operands, walk.results)
                for option, walk, _ in chosen
            )
        )
        for index, part in enumerate(expansion.parts):
            own = tuple(walk.options[index] for walk in walks)
            if not fits(expansion.read[part][1], own, mesh):
                return None
            parts.append(compose(tuple(option.signature for option in own)))
    except BadPlacement:
        return None  # two axes would cut one dim across each other's segments
    return Combination(signature, ways_of(options, mesh), tuple(parts))
