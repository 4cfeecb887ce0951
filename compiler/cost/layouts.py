"""How the results of one rank's call lie in memory: whose storage, strides, bytes.

A plan names ops and prints their arguments; torch's own kernels for tensors without
values (device ``meta``) then tell what is a view of an operand, what is a copy because
a view could not be, and how a result's dims lie in memory. Nothing is computed.

An op that the rule table lacks, or whose arguments do not read back, is taken to make
new tensors that lie in order. A plan may come from a stranger: only ops of the table
are called, those that write to their operands are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from partita.compiler.capture.schemas import writes_in_place
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.printed_call import find_op, read_arguments
from partita.compiler.rules.experiment import REFUSALS
from partita.compiler.rules.localize import localize_args
from partita.compiler.rules.table import default_rules

Strides = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Laid:
    """How a tensor lies in memory.

    Attributes:
        strides: in elements, one per dim.
        num_bytes: of the memory that it lies in, which may be larger than it.
        operand: the position of the operand whose memory it shares, if any.
    """

    strides: Strides
    num_bytes: int
    operand: int | None = None


def in_order(type: TensorType) -> Laid:
    """Return how a new tensor of a (local) type lies.

    >>> in_order(TensorType((2, 3), torch.float32))
    Laid(strides=(3, 1), num_bytes=24, operand=None)
    """
    sizes = (max(size, 1) for size in type.shape[:0:-1])
    strides = tuple(accumulate(sizes, int.__mul__, initial=1))[::-1]
    return Laid(strides if type.shape else (), type.num_bytes)


def is_in_order(type: TensorType, strides: Strides) -> bool:
    """Whether a tensor with these strides is what torch calls contiguous."""
    want = in_order(type).strides
    pairs = zip(type.shape, strides, want, strict=True)
    return type.numel == 0 or all(s == w for size, s, w in pairs if size > 1)


def is_by_channels(type: TensorType, strides: Strides) -> bool:
    """Whether an image's channels lie side by side: torch's ``channels_last``.

    >>> image = TensorType((2, 3, 4, 5), torch.float32)
    >>> is_by_channels(image, (60, 1, 15, 3)), is_by_channels(image, (60, 20, 5, 1))
    (True, False)
    """
    if type.ndim not in (4, 5) or is_in_order(type, strides):
        return False
    order = (0, *range(2, type.ndim), 1)
    shape = tuple(type.shape[dim] for dim in order)
    return is_in_order(TensorType(shape, type.dtype), tuple(strides[d] for d in order))


@lru_cache(maxsize=1 << 14)
def lay_out(
    op: str,
    constants: tuple[str, ...],
    operands: tuple[tuple[TensorType, Strides], ...],
    results: tuple[TensorType | None, ...],
) -> tuple[Laid | None, ...]:
    """Return how each result of a call lies, ``None`` where it returns no tensor.

    Args:
        op: as the plan names it, ``aten.mm.default``.
        constants: the logical call's other arguments, as the plan prints them.
        operands: types and strides of the rank's shards.
        results: types of the rank's shards.

    >>> x = TensorType((2, 3), torch.float32)
    >>> swapped = TensorType((3, 2), torch.float32)
    >>> lay_out("aten.permute.default", ("1=[1, 0]",), ((x, (3, 1)),), (swapped,))
    (Laid(strides=(1, 3), num_bytes=24, operand=0),)
    """
    found = _run(op, constants, operands, results)
    if found is None:
        return tuple(None if type_ is None else in_order(type_) for type_ in results)
    return found


def _run(
    op: str,
    constants: tuple[str, ...],
    operands: tuple[tuple[TensorType, Strides], ...],
    results: tuple[TensorType | None, ...],
) -> tuple[Laid | None, ...] | None:
    """Return what torch says, ``None`` where it cannot be asked."""
    rule = default_rules.get(op)
    if rule is None or not operands:
        return None
    target = find_op(op)
    if target is None or writes_in_place(target):
        return None
    given = [
        torch.empty_strided(type_.shape, strides, dtype=type_.dtype, device="meta")
        for type_, strides in operands
    ]
    try:
        args, kwargs = read_arguments(target, constants, given)
        shapes = [type_.shape for type_, _ in operands]
        wanted = [None if type_ is None else type_.shape for type_ in results]
        args = localize_args(rule, args, shapes, wanted)
        made = target(*args, **kwargs)
    except REFUSALS:
        return None
    made = list(made) if isinstance(made, tuple | list) else [made]
    if len(made) != len(results):
        return None
    laid = [_laid(x, given, t) for x, t in zip(made, results, strict=True)]
    if any((t is None) != (x is None) for t, x in zip(results, laid, strict=True)):
        return None
    return tuple(laid)


def _laid(
    made: object, given: Sequence[torch.Tensor], type: TensorType | None
) -> Laid | None:
    if type is None or not isinstance(made, torch.Tensor):
        return None
    if TensorType(tuple(made.shape), made.dtype) != type:
        return None
    storage = StorageWeakRef(made.untyped_storage())
    owners = (StorageWeakRef(x.untyped_storage()) for x in given)
    shared = next((i for i, owner in enumerate(owners) if owner == storage), None)
    return Laid(made.stride(), made.untyped_storage().nbytes(), shared)
