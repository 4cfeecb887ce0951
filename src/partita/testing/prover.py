"""Prove a row of the rule table on a sample, by running the real op on every shard.

All signatures that the row gives for the sample's call are tried: operands are cut
into shards (partial ones into random summands), each rank's call is made, and what the
ranks return must join to what the op returns for the whole tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx.node import map_aggregate

from partita.compiler.capture import attention as attention  # defines the op
from partita.compiler.capture import ctc as ctc  # defines the op
from partita.compiler.ir.layout import shard_shape
from partita.compiler.ir.mesh import Mesh
from partita.compiler.ir.sbp import Broadcast, Partial, Placement, Reduction
from partita.compiler.ir.signature import Signature
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.agreement import agrees, scale_of, tolerance_of
from partita.compiler.rules.factors import Factors, read
from partita.compiler.rules.localize import localize_args
from partita.compiler.rules.rule import Call, Rule
from partita.compiler.rules.signatures import Segments, axis_options, combinations
from partita.runtime.shards import take_shard

_JOIN = {
    Reduction.SUM: torch.add,
    Reduction.MAX: torch.maximum,
    Reduction.MIN: torch.minimum,
}


class RuleDisproved(AssertionError):
    """A signature that a row claims does not hold; the message shows where."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A call of an op on real tensors, which may be nested among its arguments.

    ``stand_in`` computes the same where the op itself has no kernel on the device.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    stand_in: Callable[..., Any] | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The operands, in the order of ``(args, kwargs)``."""
        found: list[Tensor] = []
        _map_tensors(
            (self.args, dict(self.kwargs)), lambda i, x: (found.append(x), x)[1]
        )
        return tuple(found)

    def run(
        self, args: tuple[Any, ...], tensors: tuple[Tensor, ...]
    ) -> tuple[Tensor | None, ...]:
        """Run the op with other arguments and tensors than the sample's own."""
        arguments = _map_tensors((args, dict(self.kwargs)), lambda i, _: tensors[i])
        function: Any = self.stand_in
        if function is None:
            function = reduce(getattr, self.op.split("."), torch.ops)
        found = function(*arguments[0], **arguments[1])
        results = found if isinstance(found, tuple | list) else (found,)
        return tuple(x if isinstance(x, Tensor) else None for x in results)


def _map_tensors(value: Any, rewrite: Callable[[int, Tensor], Any]) -> Any:
    count = -1

    def visit(leaf: Any) -> Any:
        nonlocal count
        if not isinstance(leaf, Tensor):
            return leaf
        count += 1
        return rewrite(count, leaf)

    return map_aggregate(value, visit)


def _type(tensor: Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), tensor.dtype)


def _frozen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _type(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(item) for item in cast("list[Any]", value))
    return value


def call_of(sample: Sample) -> Call:
    """Return the call that a sample makes, tensors replaced by their types."""
    return Call(
        sample.op,
        _frozen(sample.args),
        tuple((name, _frozen(value)) for name, value in sample.kwargs.items()),
        tuple(_type(tensor) for tensor in sample.tensors),
        tuple(
            None if x is None else _type(x)
            for x in sample.run(sample.args, sample.tensors)
        ),
    )


# Of these a negative operand, or a zero, would leave little but NaN to compare.
_OF_POSITIVE = {"div", "log", "log2", "pow", "rsqrt", "sqrt"}


def sample_of(call: Call, is_double: bool = True) -> Sample:
    """Return ``call`` on random tensors of small integers.

    Integer tensors hold zeros and ones, which are legal indices almost everywhere.

    Args:
        call: what is called.
        is_double: whether all that is floating is in double precision, and not in its
            own.
    """
    generator = torch.Generator().manual_seed(0)
    low = 1 if call.op.split(".")[1] in _OF_POSITIVE else -2

    def thaw(value: Any) -> Any:
        if is_double and value == torch.float32:
            return torch.float64
        if isinstance(value, tuple):
            return [thaw(item) for item in cast("tuple[Any, ...]", value)]
        if not isinstance(value, TensorType):
            return value
        if value.dtype.is_floating_point:
            dtype = torch.float64 if is_double else value.dtype
            return torch.randint(low, 3, value.shape, generator=generator).to(dtype)
        return torch.randint(0, 2, value.shape, generator=generator).to(value.dtype)

    kwargs = {name: thaw(value) for name, value in call.kwargs}
    return Sample(call.op, tuple(thaw(arg) for arg in call.args), kwargs)


def prove(
    rule: Rule,
    sample: Sample,
    mesh: Mesh,
    segments: Mapping[str, Segments] | None = None,
) -> int:
    """Return how many signatures of ``rule`` were proven for ``sample`` on ``mesh``.

    Args:
        rule: the row.
        sample: a call of its op.
        mesh: the ranks.
        segments: per factor, a segmentation to try besides none; two halves where
            nothing is said.

    Raises:
        RuleDisproved: for the first signature that does not hold.
    """
    return _Proof(rule, sample, mesh, segments).run()


def difference(found: Tensor, want: Tensor, tolerance: float, scale: float) -> str:
    """Return how two results differ beyond rounding, "" where they do not.

    ``tolerance`` and ``scale`` are those of ``agrees``.
    """
    if found.shape != want.shape or found.dtype != want.dtype:
        return f"is {_type(found)}; want {_type(want)}"
    if agrees(found, want, tolerance, scale):
        return ""
    return f"is {found.flatten()[:8].tolist()}; want {want.flatten()[:8].tolist()}"


def prove_signature(rule: Rule, sample: Sample, mesh: Mesh, wanted: Signature) -> None:
    """Prove one signature of ``rule`` for ``sample`` on ``mesh``.

    Raises:
        RuleDisproved: when it does not hold.
    """
    _Proof(rule, sample, mesh, {}).check(wanted)


class _Proof:
    def __init__(
        self,
        rule: Rule,
        sample: Sample,
        mesh: Mesh,
        segments: Mapping[str, Segments] | None,
    ) -> None:
        self.rule, self.sample, self.mesh = rule, sample, mesh
        self.tensors = sample.tensors
        self.want = sample.run(sample.args, self.tensors)
        self.tolerance = tolerance_of((*self.tensors, *self.want))
        self.generator = torch.Generator().manual_seed(0)
        self.factors: Factors = read(rule, call_of(sample))
        tried = _halves(self.factors) if segments is None else segments
        self.segments = {name: frozenset({found}) for name, found in tried.items()}
        self._shards: dict[tuple[int, Placement], list[Tensor]] = {}

    def run(self) -> int:
        options = axis_options(self.rule, self.factors, self.segments)
        count = 0
        for combination in combinations(self.factors, options, self.mesh):
            self.check(combination.signature)
            count += 1
        return count

    def check(self, signature: Signature) -> None:
        """Make every rank's call under ``signature`` and join what they return."""
        shards = [
            self._shards_of(index, placement)
            for index, placement in enumerate(signature.operands)
        ]
        found: list[tuple[Tensor | None, ...]] = []
        for rank, coordinates in enumerate(self.mesh.all_coordinates()):
            mine = tuple(by_rank[rank] for by_rank in shards)
            args = localize_args(
                self.rule,
                self.sample.args,
                [tuple(shard.shape) for shard in mine],
                self._result_shapes(signature, coordinates),
            )
            try:
                found.append(self.sample.run(args, mine))
            except (RuntimeError, IndexError, ValueError, TypeError) as error:
                raise self._disproof(
                    signature, f"rank {rank} fails: {error}"
                ) from error
        for index, (want, placement) in enumerate(
            zip(self.want, signature.results, strict=True)
        ):
            if want is not None and placement is not None:
                per_rank = [cast("Tensor", results[index]) for results in found]
                self._compare(signature, index, want, placement, per_rank)

    def _result_shapes(
        self, signature: Signature, coordinates: tuple[int, ...]
    ) -> list[tuple[int, ...] | None]:
        return [
            None
            if want is None or placement is None
            else shard_shape(tuple(want.shape), placement, self.mesh, coordinates)
            for want, placement in zip(self.want, signature.results, strict=True)
        ]

    def _shards_of(self, index: int, placement: Placement) -> list[Tensor]:
        """Return the shards of an operand, one per rank."""
        key = (index, placement)
        if key not in self._shards:
            summands = self._summands(self.tensors[index], placement)
            whole = _unreduced(placement)
            self._shards[key] = [
                take_shard(
                    summands[_on_partial_axes(placement, coordinates)],
                    whole,
                    self.mesh,
                    coordinates,
                )
                for coordinates in self.mesh.all_coordinates()
            ]
        return self._shards[key]

    def _summands(
        self, tensor: Tensor, placement: Placement
    ) -> dict[tuple[int, ...], Tensor]:
        """Return random tensors that add up, per coordinates on the partial axes."""
        sizes = [
            size if isinstance(sharding, Partial) else 1
            for sharding, size in zip(placement.shardings, self.mesh.sizes, strict=True)
        ]
        first, *others = product(*(range(size) for size in sizes))
        found: dict[tuple[int, ...], Tensor] = {}
        for coordinates in others:
            summand = torch.randint(-3, 4, tensor.shape, generator=self.generator)
            found[coordinates] = summand.to(tensor.dtype)
        rest = tensor
        for summand in found.values():
            rest = rest - summand
        return {first: rest, **found}

    def _compare(
        self,
        signature: Signature,
        index: int,
        want: Tensor,
        placement: Placement,
        per_rank: list[Tensor],
    ) -> None:
        """Check every rank's share, partial ones joined over their axes."""
        scale = scale_of((want, *per_rank))
        joined: dict[tuple[int, ...], Tensor] = {}
        for axis in reversed(range(self.mesh.ndim)):
            sharding = placement.shardings[axis]
            if not isinstance(sharding, Partial):
                continue
            joined.clear()
            for coordinates in self.mesh.all_coordinates():
                at = (*coordinates[:axis], 0, *coordinates[axis + 1 :])
                shard = per_rank[self.mesh.rank(coordinates)]
                known = joined.get(at)
                if known is not None and known.shape != shard.shape:
                    raise self._disproof(signature, f"result {index}: ragged summands")
                join = _JOIN[sharding.reduction]
                joined[at] = shard if known is None else join(known, shard)
            per_rank = [
                joined[*coordinates[:axis], 0, *coordinates[axis + 1 :]]
                for coordinates in self.mesh.all_coordinates()
            ]
        whole = _unreduced(placement)
        for rank, coordinates in enumerate(self.mesh.all_coordinates()):
            part = take_shard(want, whole, self.mesh, coordinates)
            if difference := self._difference(per_rank[rank], part, scale):
                where = f"result {index} at rank {rank} {difference}"
                raise self._disproof(signature, where)

    def _difference(self, found: Tensor, want: Tensor, scale: float) -> str:
        if "empty" in self.sample.op and found.shape == want.shape:
            return ""  # its values are undefined
        return difference(found, want, self.tolerance, scale)

    def _disproof(self, signature: Signature, what: str) -> RuleDisproved:
        types = ", ".join(str(_type(tensor)) for tensor in self.tensors)
        return RuleDisproved(
            f"{self.rule.op} of {types}: {signature} on {self.mesh}: {what}"
        )


def _halves(factors: Factors) -> dict[str, Segments]:
    return {
        name: (size // 2, size // 2)
        for name, size in factors.sizes.items()
        if size % 4 == 0
    }


def _unreduced(placement: Placement) -> Placement:
    return Placement(
        tuple(Broadcast() if isinstance(s, Partial) else s for s in placement.shardings)
    )


def _on_partial_axes(
    placement: Placement, coordinates: tuple[int, ...]
) -> tuple[int, ...]:
    return tuple(
        coordinate if isinstance(sharding, Partial) else 0
        for sharding, coordinate in zip(placement.shardings, coordinates, strict=True)
    )
