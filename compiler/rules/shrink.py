"""A call on smaller tensors that any rule of it treats alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import Call

# Two, three and four ranks find something to split in most of them.
_SIZES = (8, 12, 16, 10, 14, 18, 20, 22, 24, 26, 28, 30)

_SMALL = 8
"""Sizes that stay as they are."""


def shrunk(call: Call) -> Call:
    """Return ``call`` with every large size replaced by a small one.

    Equal sizes stay equal and different ones different; a size that stands among the
    call's arguments stays, since the op may mean it. An op that asks more of its sizes
    (one four times another) does not run on what this returns.

    >>> x = TensorType.parse("f32[512, 768]")
    >>> small = shrunk(Call("my.op.default", (x, 768), (), (x,), (x,)))
    >>> str(small.operands[0])
    'f32[8, 768]'
    """
    tensors = [t for t in (*call.operands, *call.results) if t is not None]
    sizes = dict.fromkeys(size for t in tensors for size in t.shape)
    kept = {size for size in sizes if size <= _SMALL} | _integers(
        (call.args, call.kwargs)
    )
    free = iter(size for size in _SIZES if size not in kept)
    smaller: dict[int, int] = {}
    for size in sizes:
        if size not in kept:
            smaller[size] = min(size, next(free, size))
    return Call(
        call.op,
        cast("tuple[object, ...]", _rewritten(call.args, smaller)),
        cast("tuple[tuple[str, object], ...]", _rewritten(call.kwargs, smaller)),
        tuple(_smaller(t, smaller) for t in call.operands),
        tuple(None if t is None else _smaller(t, smaller) for t in call.results),
    )


def _integers(value: object) -> set[int]:
    if isinstance(value, tuple):
        found = map(_integers, cast("tuple[object, ...]", value))
        return set().union(*found)
    return {value} if isinstance(value, int) and not isinstance(value, bool) else set()


def _smaller(type_: TensorType, smaller: Mapping[int, int]) -> TensorType:
    shape = tuple(smaller.get(size, size) for size in type_.shape)
    return TensorType(shape, type_.dtype)


def _rewritten(value: object, smaller: Mapping[int, int]) -> object:
    if isinstance(value, tuple):
        parts = cast("tuple[object, ...]", value)
        return tuple(_rewritten(part, smaller) for part in parts)
    return _smaller(value, smaller) if isinstance(value, TensorType) else value
