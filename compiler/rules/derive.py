"""Derive the row of an op that the table lacks, by experiment.

The op runs on small random tensors, whole and in shards. Of every way to cut dims of
equal size together, and of every choice of partial operands, what holds on all draws
becomes part of a row: a factor, a reduction, a term of ``linear``. Nothing that the row
then offers is taken on trust: each signature of one axis is run on two ranks, on as
many as there are elements, and in segments. Meshes of more axes follow by composition,
as they do from a row written by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from math import prod
from pathlib import Path

import torch

from partita.compiler.capture.schemas import writes_in_place
from partita.compiler.errors import BadRule
from partita.compiler.ir.sbp import Broadcast, Partial, Reduction, Split
from partita.compiler.ir.signature import AxisSignature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.call_experiments import (
    differ,
    experiments_of,
    op_of,
    tell_apart,
)
from partita.compiler.rules.child import ChildFailed, run_in_child
from partita.compiler.rules.derived_cache import DerivedCache
from partita.compiler.rules.experiment import REFUSALS, Experiment
from partita.compiler.rules.factors import read
from partita.compiler.rules.rule import Call, Rule
from partita.compiler.rules.shrink import shrunk
from partita.compiler.rules.signatures import Segments, axis_options

MAX_NUMEL = 1 << 22
"""No experiments on larger tensors: an op that takes no smaller ones stays unknown."""

_MAX_WAYS = 8
_MAX_CUTS = 4096
_MAX_PARTIAL = 6


def derive(
    call: Call, cache: Path | None = None, timeout_s: float = 60.0
) -> Rule | None:
    """Return a row that holds for ``call``, found by running its op; ``None`` if none.

    The row is for calls with these very shapes and arguments: text without functions,
    so that it prints, is stored, and is used as any other. It stands for nothing else,
    hence is no entry of a ``RuleSet``.

    ``None`` is what comes back for ops that draw random numbers, write to arguments or
    return shapes that depend on data; for those that do not run on a CPU, that give
    different results for equal arguments, crash or take too long; and where nothing
    holds but running the whole op on every rank.

    Args:
        call: a call of an op without a row.
        cache: a folder that remembers what was found, by op, shapes, arguments and
            version of torch; ``None`` to run the experiments in any case.
        timeout_s: what the experiments may take. They run in a child process.
    """
    if not call.operands or _is_refused(call.op):
        return None
    known = None if cache is None else DerivedCache(cache)
    if known is not None and (found := known.load(call)) is not None:
        return found.rule
    try:
        rule = run_in_child(partial(experiment_row, call), timeout_s)
    except ChildFailed:
        return None
    if known is not None:
        known.store(call, rule)
    return rule


_REFUSED = (
    torch.Tag.nondeterministic_seeded,
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
)


def _is_refused(name: str) -> bool:
    op = op_of(name)
    return op is None or writes_in_place(op) or any(tag in op.tags for tag in _REFUSED)


def experiment_row(call: Call) -> Rule | None:
    """Return what ``derive`` does, found in this process and not remembered."""
    for tried in (shrunk(call), call):
        if sum(t.numel for t in tried.operands) > MAX_NUMEL:
            continue
        experiments = experiments_of(tried)
        if experiments:
            tells = tell_apart(experiments)
            return _Derivation(tried, experiments).row() if tells else None
    return None


@dataclass(frozen=True)
class _Factor:
    """Dims that are cut together: one or none per tensor, and how results join."""

    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    same: frozenset[int] = frozenset()
    reduction: Reduction | None = None

    @property
    def rank(self) -> tuple[bool, bool, int]:
        """Say how good it is, best first: nothing to join, sums, more that is cut."""
        cut = sum(dim is not None for dim in (*self.operands, *self.results))
        is_other = self.reduction not in (None, Reduction.SUM)
        return self.reduction is not None, is_other, -cut


class _Derivation:
    def __init__(self, call: Call, experiments: Sequence[Experiment]) -> None:
        self.call = call
        self.experiments = experiments

    def row(self) -> Rule | None:
        linear = self._linear()
        found = [f for f in self._factors(linear) if self._holds([f], linear)]
        chosen: list[_Factor] = []
        for factor in sorted(found, key=lambda factor: factor.rank):
            if not any(_overlap(factor, other) for other in chosen):
                chosen.append(factor)
        if not chosen and not linear:
            return None
        chosen.sort(key=lambda factor: [_place(d) for d in factor.operands])
        rule = self._rule(chosen, linear)
        return rule if self._holds(chosen, linear) else None

    # What is linear

    def _linear(self) -> str:
        inexact = [i for i, t in enumerate(self.call.operands) if _is_inexact(t)]
        if not all(t is None or _is_inexact(t) for t in self.call.results):
            return ""
        minimal: list[frozenset[int]] = []
        is_many = len(inexact) > _MAX_PARTIAL
        sizes = (1, 2, len(inexact)) if is_many else range(1, len(inexact) + 1)
        for size in sizes:
            for chosen in map(frozenset, combinations(inexact, size)):
                if not any(m <= chosen for m in minimal) and self._is_additive(chosen):
                    minimal.append(chosen)
        return _expression(minimal)

    def _is_additive(self, chosen: frozenset[int]) -> bool:
        num = len(self.call.operands)
        operands = tuple(Partial() if i in chosen else Broadcast() for i in range(num))
        results = tuple(None if t is None else Partial() for t in self.call.results)
        return self._runs(AxisSignature(operands, results), 3)

    # What is cut together

    def _factors(self, linear: str) -> Iterator[_Factor]:
        sizes = {size for t in self.call.operands for size in t.shape if size > 1}
        for size in sorted(sizes):
            for cut in self._cuts(size):
                if any(dim is not None for dim in cut):
                    factor = self._factor(cut, size, bool(linear))
                    if factor is not None:
                        yield factor

    def _cuts(self, size: int) -> Iterator[tuple[int | None, ...]]:
        """Yield dims of one size per operand; of many operands, those in one place."""
        shapes = [t.shape for t in self.call.operands]
        dims = [[None, *(d for d, s in enumerate(x) if s == size)] for x in shapes]
        if prod(map(len, dims)) <= _MAX_CUTS:
            yield from product(*dims)
            return
        for place in range(max(map(len, shapes))):
            yield tuple(place if place in found else None for found in dims)
            last = [len(x) - 1 - place for x in shapes]
            yield tuple(
                d if d in found else None for d, found in zip(last, dims, strict=True)
            )

    def _factor(
        self, cut: tuple[int | None, ...], size: int, is_linear: bool
    ) -> _Factor | None:
        """Return what the first draw says of the results; the rest is checked later."""
        operands = tuple(Broadcast() if d is None else Split(d) for d in cut)
        first = self.experiments[0]
        found = first.results_of(operands, 2)
        if found is None:
            return None
        results: list[int | None] = []
        same: set[int] = set()
        reductions: set[Reduction] = set()
        for index, type_ in enumerate(self.call.results):
            held = first.shardings_of(index, found)
            dim = next((s.dim for s in held if isinstance(s, Split)), None)
            results.append(None)
            if type_ is None:
                continue
            if dim is not None and type_.shape[dim] == size:
                results[-1] = dim
            elif Broadcast() in held:
                if any(
                    self._depends(index, i) for i, d in enumerate(cut) if d is not None
                ):
                    return None  # all parts gave the same by luck
                same.add(index)
            else:
                joins = [s.reduction for s in held if isinstance(s, Partial)]
                # A bias that every rank adds hides a sum; the row says who may add it.
                default = [Reduction.SUM] if is_linear else []
                reductions.update((joins or default)[:1])
                if not joins and not default:
                    return None
        if len(reductions) > 1:
            return None
        reduction = next(iter(reductions), None)
        return _Factor(cut, tuple(results), frozenset(same), reduction)

    def _depends(self, index: int, operand: int) -> bool:
        """Whether a result changes when an operand has another draw's values."""
        for experiment in self.experiments:
            for other in self.experiments:
                tensors = list(experiment.tensors)
                tensors[operand] = other.tensors[operand]
                try:
                    got = experiment.run(tuple(tensors), ())[index]
                except REFUSALS:
                    return True
                want = experiment.want[index]
                if want is not None and differ(want, got):
                    return True
        return False

    # As a row

    def _rule(self, factors: Sequence[_Factor], linear: str) -> Rule:
        joins = {f.reduction for f in factors if f.reduction is not None}
        left = [
            _text(t.ndim, [(f.operands[i], k) for k, f in enumerate(factors)])
            for i, t in enumerate(self.call.operands)
        ]
        right: list[str] = []
        for i, t in enumerate(self.call.results):
            ndim = 0 if t is None else t.ndim
            words = _text(ndim, [(f.results[i], k) for k, f in enumerate(factors)])
            same = [f"=f{k}" for k, f in enumerate(factors) if i in f.same]
            right.append(" ".join([words, *same]))
        return Rule(
            self.call.op,
            f"{', '.join(left)} -> {', '.join(right)}",
            linear=linear,
            reduce=min(joins, default=Reduction.SUM),
        )

    def _holds(self, factors: Sequence[_Factor], linear: str) -> bool:
        """Whether every signature that a row of these factors offers holds."""
        rule = self._rule(factors, linear)
        try:
            read_factors = read(rule, self.call)
            segments = {
                name: frozenset({_halves(size)})
                for name, size in read_factors.sizes.items()
                if size % 4 == 0
            }
            options = axis_options(rule, read_factors, segments)
        except BadRule:
            return False
        split = {option.factor for option in options if option.factor}
        if len(split) < len(factors):
            return False
        for option in options:
            size = read_factors.sizes.get(option.factor or "", 2)
            ways = {2} if option.segments else {2, min(size, _MAX_WAYS)}
            # Chunks of which the last would be empty are never asked for.
            ways = {n for n in ways if n <= 2 or size % n == 0}
            if not all(self._runs(option.signature, n) for n in ways):
                return False
        return True

    def _runs(self, signature: AxisSignature, num: int) -> bool:
        for experiment in self.experiments:
            found = experiment.results_of(signature.operands, num)
            if found is None or not all(
                experiment.holds(index, sharding, found)
                for index, sharding in enumerate(signature.results)
            ):
                return False
        return True


def _place(dim: int | None) -> float:
    return float("inf") if dim is None else dim


def _is_inexact(type_: TensorType) -> bool:
    return type_.dtype.is_floating_point or type_.dtype.is_complex


def _halves(size: int) -> Segments:
    return (size // 2, size // 2)


def _overlap(one: _Factor, other: _Factor) -> bool:
    """Whether both name one dim of a tensor, or join results in different ways."""
    pairs = zip(
        (*one.operands, *one.results), (*other.operands, *other.results), strict=True
    )
    reductions = {f.reduction for f in (one, other) if f.reduction is not None}
    return len(reductions) > 1 or any(a is not None and a == b for a, b in pairs)


def _text(ndim: int, named: Sequence[tuple[int | None, int]]) -> str:
    names = {dim: f"f{k}" for dim, k in named if dim is not None}
    return " ".join(names.get(dim, "?") for dim in range(ndim)) or "?"


def _expression(minimal: Sequence[frozenset[int]]) -> str:
    """Return operands that may be partial together as a sum of products.

    Alternatives are factors of one product: of ``{0, 1}`` and ``{0, 2}`` they are 1 and
    2, which gives ``0+1*2``.

    >>> _expression([frozenset({0, 1}), frozenset({0, 2})])
    '0+1*2'
    """
    if not minimal:
        return ""
    # Two operands never partial together are factors of one term.
    groups: list[list[int]] = []
    for index in sorted(frozenset().union(*minimal)):
        for group in groups:
            if not any({index, other} <= m for m in minimal for other in group):
                group.append(index)
                break
        else:
            groups.append([index])
    offered = set(map(frozenset, product(*groups)))
    if offered != set(minimal):
        groups = [[index] for index in sorted(minimal[0])]
    return "+".join("*".join(map(str, group)) for group in groups)
