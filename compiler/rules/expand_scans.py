"""Scans taken apart into chunks of the dim they go along; see ``expand.py``.

Each chunk is scanned by itself, then joined with what the chunks before it come to:
one element of each. ``call.chunks`` says how many chunks there are.

Source: Blelloch, "Prefix Sums and Their Applications", CMU-CS-90-190, section 1.3.
"""

from __future__ import annotations

from math import inf
from typing import Any

import torch

from partita.compiler.rules import chunk_ops as chunk_ops  # defines the ops
from partita.compiler.rules.expand_indexing import arange
from partita.compiler.rules.rule import Call
from partita.compiler.rules.shapes import ints

aten = torch.ops.aten
partita = torch.ops.partita

_HALF = (torch.float16, torch.bfloat16)


def _with(values: list[int], dim: int, value: int) -> list[int]:
    return [*values[:dim], value, *values[dim + 1 :]]


class _Chunks:
    """A dim of a shape in so many chunks."""

    def __init__(self, shape: tuple[int, ...], dim: int, num: int) -> None:
        self.shape, self.dim, self.num = list(shape), dim, num
        self.counts = _with([1] * len(shape), dim, num)

    @property
    def ends(self) -> list[int]:
        """The shape of what has one element per chunk."""
        return _with(self.shape, self.dim, self.num)

    @property
    def pads(self) -> list[int]:
        """What moves every element to the next place, and the last one out."""
        return [*[0, 0] * (len(self.shape) - 1 - self.dim), 1, -1]


def _of_scan(call: Call) -> _Chunks | None:
    shape = call.operands[0].shape
    (dim,) = ints(dict(call.kwargs).get("dim", call.arg(1, -1)))
    dim %= max(len(shape), 1)
    num = dict(call.chunks).get(f"d{dim}", 1)
    return _Chunks(shape, dim, num) if num > 1 else None


# Scans


def _scan(call: Call, x: Any, kind: str, identity: float, join: Any) -> Any:
    chunks, result = _of_scan(call), call.results[0]
    assert result is not None
    if chunks is None:
        return None
    worked_in = torch.float32 if result.dtype in _HALF else result.dtype
    if call.operands[0].dtype != worked_in:
        x = aten._to_copy.default(x, dtype=worked_in)
    dim, counts = chunks.dim, chunks.counts
    inside = partita.scan.default(x, dim, kind, counts, chunks.shape)
    ends = partita.chunk_ends.default(inside, dim, counts, chunks.ends)
    before = aten.constant_pad_nd.default(ends, chunks.pads, identity)
    before = chunk_ops.SCANS[kind](before, dim)
    filled = partita.chunk_fill.default(before, inside, dim, counts, chunks.shape)
    out = join(inside, filled)
    if worked_in != result.dtype:
        out = aten._to_copy.default(out, dtype=result.dtype)
    return (out,)


def cumsum(call: Call, x: Any) -> tuple[Any, ...] | None:
    """Take apart ``cumsum(x, dim, dtype)``."""
    return _scan(call, x, "cumsum", 0, aten.add.Tensor)


def cumprod(call: Call, x: Any) -> tuple[Any, ...] | None:
    """Take apart ``cumprod(x, dim, dtype)``."""
    return _scan(call, x, "cumprod", 1, aten.mul.Tensor)


def logcumsumexp(call: Call, x: Any) -> tuple[Any, ...] | None:
    """Take apart ``logcumsumexp(x, dim)``."""
    return _scan(call, x, "logcumsumexp", -inf, aten.logaddexp.default)


def _scan_extreme(call: Call, x: Any, kind: str, is_beaten: Any) -> Any:
    chunks, type_ = _of_scan(call), call.operands[0]
    if chunks is None or not type_.dtype.is_floating_point:
        return None
    dim, counts = chunks.dim, chunks.counts
    positions = arange(x, chunks.shape[dim])
    given = (dim, kind, counts, chunks.shape)
    inside = partita.scan_extreme.default(x, positions, *given)
    ends, places = (
        partita.chunk_ends.default(found, dim, counts, chunks.ends)
        for found in (inside[0], inside[1])
    )
    worst = -inf if kind == "cummax" else inf
    before = aten.constant_pad_nd.default(ends, chunks.pads, worst)
    places = aten.constant_pad_nd.default(places, chunks.pads, 0)
    found = chunk_ops.EXTREMES[kind](before, dim)
    places = aten.gather.default(places, dim, found[1])
    before, places = (
        partita.chunk_fill.default(filled, inside[0], dim, counts, chunks.shape)
        for filled in (found[0], places)
    )
    # Of equal ones the last counts, and a NaN stays once it is there.
    stays = aten.logical_or.default(
        is_beaten(inside[0], before), aten.isnan.default(inside[0])
    )
    return (
        aten.where.self(stays, inside[0], before),
        aten.where.self(stays, inside[1], places),
    )


def cummax(call: Call, x: Any) -> tuple[Any, ...] | None:
    """Take apart ``cummax(x, dim)``."""
    return _scan_extreme(call, x, "cummax", aten.ge.Tensor)


def cummin(call: Call, x: Any) -> tuple[Any, ...] | None:
    """Take apart ``cummin(x, dim)``."""
    return _scan_extreme(call, x, "cummin", aten.le.Tensor)
