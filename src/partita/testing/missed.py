"""Look for signatures that hold and that a row does not claim.

Every placement of a call's operands on two ranks is tried, on several draws of their
values; what the results then recombine to is a signature. It is missed if the table
offers nothing as good: operands that are reached for free (a whole tensor is cut, or
kept by one rank as a partial sum, without communication) and results at least as whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from partita.compiler.ir.sbp import Broadcast, Partial, Reduction, Sharding, Split
from partita.compiler.ir.signature import AxisSignature
from partita.compiler.rules.child import ChildFailed, run_in_child
from partita.compiler.rules.experiment import REFUSALS, Experiment, Results
from partita.compiler.rules.factors import read
from partita.compiler.rules.localize import localize_args
from partita.compiler.rules.rule import Rule
from partita.compiler.rules.signatures import axis_options
from partita.testing.prover import Sample, call_of

TIMEOUT_S = 30.0
ONE_TIMEOUT_S = 10.0  # what breaks a copy's memory may hang it as well
NUM_RANKS = 2
NUM_DRAWS = 5
MIN_NUMEL = 4
_EXTREMES = frozenset({Partial(Reduction.MAX), Partial(Reduction.MIN)})
MAX_CANDIDATES = 300
"""Of a call with more placements only those that split equal sizes are tried."""


@dataclass(frozen=True)
class Missed:
    """A signature that holds for a call and is not in the table.

    ``call`` are the types of the operands; ``signature`` is for one mesh axis.
    """

    op: str
    call: str
    signature: AxisSignature

    def __str__(self) -> str:
        return f"{self.op}({self.call}): {self.signature}"


def redrawn(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return a tensor of other values from the same domain.

    Entries change places, so that indices stay legal and probabilities probabilities;
    numbers shrink by random factors as well, so that none of them is a special one.
    """
    if tensor.dtype == torch.bool:
        return torch.rand(tensor.shape, generator=generator) < 0.5
    order = torch.randperm(tensor.numel(), generator=generator)
    mixed = tensor.flatten()[order].reshape(tensor.shape)
    if not tensor.is_floating_point():
        return mixed
    factors = 0.5 + torch.rand(tensor.shape, generator=generator) / 2
    # Of nothing but zeros everything holds.
    return (mixed if mixed.any() else torch.ones_like(mixed)) * factors.to(tensor.dtype)


def _of_any_sign(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return redrawn(tensor, generator)
    return 8 * torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)


def _experiments(rule: Rule, sample: Sample) -> list[Experiment]:
    def run(tensors: tuple[Tensor, ...], shapes: Sequence[Any]) -> Results:
        args = sample.args
        if shapes:
            operands = [tuple(x.shape) for x in tensors]
            args = localize_args(rule, sample.args, operands, shapes)
        return sample.run(args, tensors)

    generator = torch.Generator().manual_seed(0)
    found = [Experiment(run, sample.tensors)]
    for seed in range(1, NUM_DRAWS):
        tensors = tuple(redrawn(x, generator) for x in sample.tensors)
        found.append(Experiment(run, tensors, seed))
        tensors = tuple(_of_any_sign(x, generator) for x in sample.tensors)
        wild = Experiment(run, tensors, seed)
        if all(x is None or bool(x.isfinite().all()) for x in wild.want):
            found.append(wild)  # else they left the domain of the op
    return found


def _reads(sample: Sample) -> list[bool]:
    """Return whether results depend on an operand's values, not on its shape alone."""
    want = sample.run(sample.args, sample.tensors)
    found: list[bool] = []
    for index, x in enumerate(sample.tensors):
        other = [*sample.tensors]
        other[index] = torch.zeros_like(x) if x.any() else torch.ones_like(x)
        try:
            got = sample.run(sample.args, tuple(other))
        except REFUSALS:  # as indices are out of bounds, or divisors zero
            found.append(True)
            continue
        pairs = zip(want, got, strict=True)
        found.append(any(_differ(x, y) for x, y in pairs))
    return found


def _differ(x: Tensor | None, y: Tensor | None) -> bool:
    if x is None or y is None:
        return False
    return x.shape != y.shape or not torch.allclose(x, y, 0, 0, equal_nan=True)


def _placements(sample: Sample) -> list[tuple[Sharding, ...]]:
    """Return the placements of the operands that are worth trying, fewest cuts first.

    What is not read is not tried as partial: it may be anything.
    """
    results = sample.run(sample.args, sample.tensors)
    is_inexact = all(x is None or _is_inexact(x) for x in results)
    options: list[list[Sharding]] = []
    for x, is_read in zip(sample.tensors, _reads(sample), strict=True):
        found: list[Sharding] = [Broadcast()]
        found += [Split(dim) for dim, size in enumerate(x.shape) if size > 1]
        if is_inexact and is_read and _is_inexact(x):
            found.append(Partial())
        options.append(found)
    is_many = prod(len(found) for found in options) > MAX_CANDIDATES
    tried: list[tuple[Sharding, ...]] = []
    for operands in product(*options):
        sizes = {
            x.shape[sharding.dim]
            for x, sharding in zip(sample.tensors, operands, strict=True)
            if isinstance(sharding, Split)
        }
        if not is_many or (len(sizes) <= 1 and _num_partial(operands) <= 2):
            tried.append(operands)
    return tried


def _is_inexact(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _num_partial(shardings: Iterable[Sharding]) -> int:
    return sum(isinstance(sharding, Partial) for sharding in shardings)


def is_free(held: Sharding | None, wanted: Sharding | None) -> bool:
    """Whether a rank gets ``wanted`` from what it holds without communication."""
    return held == wanted or isinstance(held, Broadcast)


def implies(known: AxisSignature, other: AxisSignature) -> bool:
    """Whether who may choose ``known`` has no use for ``other``."""
    return all(
        is_free(held, wanted)
        for held, wanted in (
            *zip(other.operands, known.operands, strict=True),
            *zip(known.results, other.results, strict=True),
        )
    )


def _found(
    experiments: Sequence[Experiment], operands: tuple[Sharding, ...], rule: Rule
) -> Iterator[AxisSignature]:
    """Yield what holds on every draw when the operands are placed so."""
    first = experiments[0]
    ndims = [x.ndim for x in first.want if x is not None]
    expected: list[Sharding | None] = [None]
    if rule.localize:
        expected += [Split(dim) for dim in range(max(ndims, default=0))]
    for guess in expected:
        held: list[set[Sharding | None]] = []
        for experiment in experiments:
            results = experiment.results_of(operands, NUM_RANKS, guess)
            if results is None:
                break
            now = [
                set(experiment.shardings_of(index, results))
                for index in range(len(experiment.want))
            ]
            if _num_partial(operands):
                # The extreme of what adds up is another value, but for luck.
                now = [shardings - _EXTREMES for shardings in now]
            held = [a & b for a, b in zip(held, now, strict=True)] if held else now
            if not all(held):
                break
        else:
            yield AxisSignature(operands, tuple(map(_strongest, held)))


def _strongest(held: set[Sharding | None]) -> Sharding | None:
    """Return the most whole of what holds: ``B``, a split, a sum, an extreme."""
    order = [Split, Partial]
    if None in held or Broadcast() in held:
        return None if None in held else Broadcast()
    return min(
        held,
        key=lambda s: (
            order.index(type(s)),  # type: ignore[arg-type]
            s.reduction != Reduction.SUM if isinstance(s, Partial) else False,
            str(s),
        ),
    )


def _held(
    rule: Rule, sample: Sample, placements: Sequence[tuple[Sharding, ...]]
) -> list[AxisSignature]:
    experiments = _experiments(rule, sample)
    if not any(
        _changes(index, experiments) for index in range(len(experiments[0].want))
    ):
        return []  # of a constant everything holds
    return [x for tried in placements for x in _found(experiments, tried, rule)]


def _changes(index: int, experiments: Sequence[Experiment]) -> bool:
    first, *others = (experiment.want[index] for experiment in experiments)
    return any(_differ(first, other) for other in others)


def _held_in_child(
    rule: Rule, sample: Sample, placements: Sequence[tuple[Sharding, ...]]
) -> list[AxisSignature]:
    """Return what holds; a placement with which the op crashes does not."""
    try:
        return run_in_child(partial(_held, rule, sample, placements), TIMEOUT_S)
    except ChildFailed:
        found: list[AxisSignature] = []
        for tried in placements:
            held = partial(_held, rule, sample, [tried])
            with suppress(ChildFailed):
                found += run_in_child(held, ONE_TIMEOUT_S)
        return found


def find_missed(rule: Rule, sample: Sample) -> list[Missed]:
    """Return the signatures of a sample's call that ``rule`` does not offer.

    Those that another of them implies are left out. Runs in child processes: some
    kernels crash when operands are cut in ways that do not go together.
    """
    call = call_of(sample)
    known = [o.signature for o in axis_options(rule, read(rule, call), {})]
    missed: list[AxisSignature] = []
    for signature in _held_in_child(rule, sample, _placements(sample)):
        if not any(implies(other, signature) for other in (*known, *missed)):
            missed = [m for m in missed if not implies(signature, m)]
            missed.append(signature)
    types = ", ".join(str(t) for t in call.operands)
    return [Missed(rule.op, types, signature) for signature in missed]


def find_all_missed(
    rows: Iterable[Rule], samples: Mapping[str, Sequence[Sample]], per_op: int = 4
) -> dict[str, list[Missed]]:
    """Return what the rows miss, by op, on the first calls of each form of an op.

    A form is how many dims the operands have, and the switches among the arguments.
    """
    found: dict[str, list[Missed]] = {}
    for rule in rows:
        for sample in _of_each_form(samples.get(rule.op, ()))[:per_op]:
            found.setdefault(rule.op, []).extend(find_missed(rule, sample))
    return {op: missed for op, missed in found.items() if missed}


def _plain(args: tuple[Any, ...]) -> str:
    return str([arg for arg in args if isinstance(arg, bool | str | None)])


def _of_each_form(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples, one of each form first, large ones before small ones."""
    seen: dict[object, int] = {}
    ranked: list[tuple[int, int, Sample]] = []
    for sample in samples:
        numels = [x.numel() for x in sample.tensors]
        if not all(numels) or max(numels, default=0) < MIN_NUMEL:
            continue  # of next to nothing next to everything holds
        form = (tuple(x.ndim for x in sample.tensors), _plain(sample.args))
        seen[form] = seen.get(form, 0) + 1
        dims = sum(size > 1 for x in sample.tensors for size in x.shape)
        ranked.append((seen[form], -dims, sample))
    return [sample for *_, sample in sorted(ranked, key=lambda item: item[:2])]
