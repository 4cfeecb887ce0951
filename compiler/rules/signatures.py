"""From a row to signatures: what each mesh axis may do with one call of an op.

Per axis an option is one of

* every tensor ``B``: always legal, each rank does all the work
* one factor split: tensors that have it ``S``, operands without it ``B``, results
  without it partial (the factor was reduced) or, where the row says so, ``B``
* ``P(sum)`` through a linear op: in each product one operand ``P``, the rest ``B``

Options of several axes combine freely, as far as shapes allow (OneFlow's N-D SBP is
the product of the 1-D signatures; Shardy's rules are factors in the same sense).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from partita.compiler.errors import BadPlacement, BadRule
from partita.compiler.ir.layout import chunk
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Reduction, Sharding, Split
from partita.compiler.ir.signature import AxisSignature, Signature, compose
from partita.compiler.rules.factors import Factors, Part
from partita.compiler.rules.rule import Rule

Segments = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Option:
    """What one axis may do: a signature, and the factor it splits (if any)."""

    signature: AxisSignature
    factor: str | None = None
    segments: Segments = ()


@lru_cache(maxsize=1 << 14)
def split_of(part: Part, segments: Segments) -> Split:
    """Return how a tensor is split when the factor of ``part`` is.

    >>> split_of(Part("h", dim=2, size=4, outer=3, inner=16), ())
    Split(dim=2, segments=(64, 64, 64))
    """
    units = part.pieces or segments or (part.size,)
    return Split(part.dim, tuple(unit * part.inner for unit in units) * part.outer)


def _products(linear: str, num_operands: int) -> list[list[int]]:
    """Return the linear expression as a sum (outer list) of products (inner lists)."""
    if linear == "+":
        return [[index] for index in range(num_operands)]
    return [[int(index) for index in term.split("*")] for term in linear.split("+")]


def _part_of(factor: str, parts: tuple[Part, ...] | None) -> Part | None:
    found = [part for part in parts or () if part.factor == factor]
    return found[0] if len(found) == 1 else None


def _split_options(
    rule: Rule, factors: Factors, factor: str, segments: Segments
) -> Iterator[Option]:
    occurrences = [*factors.operands, *(r for r in factors.results if r is not None)]
    if any(sum(p.factor == factor for p in parts) > 1 for parts in occurrences):
        return
    operands: list[Sharding] = []
    for parts in factors.operands:
        part = _part_of(factor, parts)
        operands.append(Broadcast() if part is None else split_of(part, segments))
    reduced = False
    results: list[Sharding | None] = []
    for index, parts in enumerate(factors.results):
        part = _part_of(factor, parts)
        if parts is None:
            results.append(None)
        elif part is not None:
            results.append(split_of(part, segments))
        elif factor in factors.same[index]:
            results.append(Broadcast())
        elif rule.reduce is None or not factors.joinable:
            return
        else:
            reduced = True
            results.append(Partial(rule.reduce))
    if not reduced or not factors.linear or rule.reduce is not Reduction.SUM:
        signature = AxisSignature(tuple(operands), tuple(results))
        yield Option(signature, factor, segments)
        return
    # A product without the reduced factor would be added once per rank, unless one of
    # its own operands is partial: addmm's bias.
    lacking = [
        term
        for term in _products(factors.linear, len(operands))
        if not any(isinstance(operands[index], Split) for index in term)
    ]
    for chosen in product(*lacking):
        shardings = list(operands)
        for index in chosen:
            shardings[index] = Partial()
        signature = AxisSignature(tuple(shardings), tuple(results))
        yield Option(signature, factor, segments)


def _partial_options(rule: Rule, factors: Factors) -> Iterator[Option]:
    num = len(factors.operands)
    if not factors.linear or not num:
        return
    terms = _products(factors.linear, num)
    if any(index >= num for term in terms for index in term):
        raise BadRule(f"rule {rule.op}: linear {factors.linear!r} of {num} operands")
    terms = [[i for i in term if i in factors.partial] for term in terms]
    results = tuple(None if r is None else Partial() for r in factors.results)
    for chosen in product(*terms):
        operands = tuple(
            Partial() if index in chosen else Broadcast() for index in range(num)
        )
        yield Option(AxisSignature(operands, results))


def axis_options(
    rule: Rule, factors: Factors, segments: Mapping[str, frozenset[Segments]]
) -> tuple[Option, ...]:
    """Return what a mesh axis may do, shapes aside; all-``B`` comes first.

    ``segments`` are the segmentations worth trying per factor, besides none.
    """
    everything = AxisSignature(
        tuple(Broadcast() for _ in factors.operands),
        tuple(None if r is None else Broadcast() for r in factors.results),
    )
    options = [Option(everything), *_partial_options(rule, factors)]
    for factor, size in factors.sizes.items():
        if size > 1 and factor not in factors.expanded:
            for tried in ((), *sorted(segments.get(factor, ()))):
                options += _split_options(rule, factors, factor, tried)
    return tuple(options)


def _is_divisible(part: Part, segments: Segments, ways: tuple[int, ...]) -> bool:
    """Whether chunks of the factor are chunks of the dim, and none is empty."""
    total = prod(ways)
    if part.chunks:
        cut = part.pieces != () or _has_all(part.size, ways)
        return total == part.chunks and not segments and cut
    for unit in part.pieces or segments or (part.size,):
        if unit % total == 0:
            continue
        if len(ways) > 1 or part.outer > 1 or part.pieces or segments:
            return False
        if chunk(unit, total, total - 1)[0] >= unit:
            return False
        step = -(-unit // total)
        if -(-unit * part.inner // total) != step * part.inner:
            return False
    return True


def _has_all(size: int, ways: tuple[int, ...]) -> bool:
    """Whether no chunk of a dim is empty, and axes cut what one axis would."""
    total = prod(ways)
    if size % total == 0:
        return True
    return len(ways) == 1 and chunk(size, total, total - 1)[0] < size


def fits(factors: Factors, options: tuple[Option, ...], mesh: Mesh) -> bool:
    """Whether the factors that the axes' ``options`` split divide as they ask."""
    ways: dict[tuple[str, Segments], list[int]] = {}
    for option, size in zip(options, mesh.sizes, strict=True):
        if option.factor is not None:
            ways.setdefault((option.factor, option.segments), []).append(size)
    if len({factor for factor, _ in ways}) < len(ways):
        return False  # one factor in two segmentations
    tensors = [*factors.operands, *(r for r in factors.results if r is not None)]
    return all(
        _is_divisible(part, segments, tuple(sizes))
        for (factor, segments), sizes in ways.items()
        for parts in tensors
        for part in parts
        if part.factor == factor
    )


@dataclass(frozen=True, slots=True)
class Combination:
    """One legal choice on the whole mesh, and how many ways each factor is split.

    ``parts`` are the signatures of the op's parts where it is taken apart.
    """

    signature: Signature
    ways: tuple[tuple[str, int], ...]
    parts: tuple[Signature, ...] = ()


def ways_of(options: tuple[Option, ...], mesh: Mesh) -> tuple[tuple[str, int], ...]:
    """Return how many ways each factor is split by the axes' options."""
    ways: dict[str, int] = {}
    for option, size in zip(options, mesh.sizes, strict=True):
        if option.factor is not None:
            ways[option.factor] = ways.get(option.factor, 1) * size
    return tuple(ways.items())


def ways_in(factors: Factors, signature: Signature, mesh: Mesh) -> dict[str, int]:
    """Return how many ways ``signature`` splits each factor."""
    ways: dict[str, int] = {}
    placed = [
        *zip(factors.operands, signature.operands, strict=True),
        *zip(factors.results, signature.results, strict=True),
    ]
    for axis, size in enumerate(mesh.sizes):
        own = [
            (parts, placement.shardings[axis])
            for parts, placement in placed
            if parts is not None and placement is not None
        ]
        split = [
            factor
            for factor in factors.sizes
            if any(isinstance(sharding, Split) for _, sharding in own)
            and all(_may_split(factor, *pair) for pair in own)
        ]
        for factor in split if len(split) == 1 else ():
            ways[factor] = ways.get(factor, 1) * size
    return ways


def _may_split(factor: str, parts: tuple[Part, ...], sharding: Sharding) -> bool:
    """Whether a tensor is as an axis has it that splits ``factor``."""
    part = _part_of(factor, parts)
    dim = sharding.dim if isinstance(sharding, Split) else None
    return dim == (None if part is None else part.dim)


def combinations(
    factors: Factors,
    options: tuple[Option, ...],
    mesh: Mesh,
    fixed: Mapping[int, AxisSignature] | None = None,
) -> Iterator[Combination]:
    """Yield every legal combination of the axes' options on ``mesh``.

    An axis of size one offers only ``B``: there is nothing to split. ``fixed`` says
    what some axes do.
    """
    per_axis = [options if size > 1 else options[:1] for size in mesh.sizes]
    for axis, own in (fixed or {}).items():
        per_axis[axis] = tuple(o for o in per_axis[axis] if o.signature == own)
    for chosen in product(*per_axis):
        if not fits(factors, chosen, mesh):
            continue
        try:
            signature = compose(tuple(option.signature for option in chosen))
        except BadPlacement:
            continue  # two axes would cut one dim across each other's segments
        yield Combination(signature, ways_of(chosen, mesh))


def is_legal(
    signature: Signature, factors: Factors, options: tuple[Option, ...], mesh: Mesh
) -> bool:
    """Whether ``signature`` is one of the combinations of ``options`` on ``mesh``."""
    per_axis: list[list[Option]] = []
    for axis, size in enumerate(mesh.sizes):
        here = AxisSignature(
            tuple(p.shardings[axis] for p in signature.operands),
            tuple(None if p is None else p.shardings[axis] for p in signature.results),
        )
        offered = options if size > 1 else options[:1]
        per_axis.append([o for o in offered if o.signature == here])
    return any(fits(factors, chosen, mesh) for chosen in product(*per_axis))
