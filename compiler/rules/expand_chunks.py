"""Ops along a dim taken apart into its chunks: scans, and what slides over space.

A scan does each chunk by itself and adds what the chunks before it come to; a window
sees the rows that neighbours lend. ``call.chunks`` says how many chunks there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from partita.compiler.ir.layout import chunk
from partita.compiler.rules import chunk_ops as chunk_ops  # defines the ops
from partita.compiler.rules import chunked_images as chunked_images  # likewise
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
    filled = partita.chunk_fill.default(before, dim, counts, chunks.shape)
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
        partita.chunk_fill.default(filled, dim, counts, chunks.shape)
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


# Windows that slide over space


@dataclass(frozen=True)
class _Halo:
    """A spatial dim in chunks, and the rows that windows see around each of them."""

    dim: int
    num: int
    before: int
    behind: int

    @classmethod
    def of(
        cls, call: Call, shape: tuple[int, ...], window: Mapping[str, list[int]]
    ) -> list[_Halo] | None:
        """Return those of a call; ``None`` where a chunk has fewer rows than it lends.

        Args:
            call: what is taken apart.
            shape: of the image.
            window: its kernel, stride, padding and dilation per spatial dim.
        """
        found: list[_Halo] = []
        space = len(window["kernel"])
        for at in range(space):
            num = dict(call.chunks).get(f"y{at}", 1)
            if num == 1:
                continue
            kernel, stride, padding, dilation = (
                window[name][at] for name in ("kernel", "stride", "padding", "dilation")
            )
            behind = (kernel - 1) * dilation + 1 - stride - padding
            dim = len(shape) - space + at
            halo = cls(dim, num, padding, max(behind, 0))
            start, stop = chunk(shape[dim], num, num - 1)
            if stop - start < max(halo.before, halo.behind, 1):
                return None
            found.append(halo)
        return found if found else None

    def _counts(self, ndim: int) -> list[int]:
        return _with([1] * ndim, self.dim, self.num)

    def widened(self, sizes: list[int]) -> list[int]:
        """Return the sizes of an image with the rows around its chunks."""
        rows = sizes[self.dim] + self.num * (self.before + self.behind)
        return _with(sizes, self.dim, rows)

    def _blocks(self, op: Any, x: Any, sizes: list[int], rows: int, fill: float) -> Any:
        if not rows:
            return None
        blocks = [self.num + 1, *_with(sizes, self.dim, rows)]
        counts = [self.num, *[1] * len(sizes)]
        return op(x, self.dim, rows, fill, counts, blocks)

    def widen(self, x: Any, sizes: list[int], fill: float) -> Any:
        """Return ``x`` with the rows around its chunks; outside they are ``fill``."""
        if not self.before and not self.behind:
            return x
        before = self._blocks(partita.chunk_tails.default, x, sizes, self.before, fill)
        behind = self._blocks(partita.chunk_heads.default, x, sizes, self.behind, fill)
        counts, wide = self._counts(len(sizes)), self.widened(sizes)
        return partita.widen.default(x, before, behind, self.dim, counts, wide)

    def fold(self, grad: Any, sizes: list[int]) -> Any:
        """Return the gradient of ``x`` of ``widen``, given that of its result."""
        if not self.before and not self.behind:
            return grad
        wide = self.widened(sizes)
        before = self._blocks(partita.chunk_tails.default, grad, wide, self.behind, 0)
        behind = self._blocks(partita.chunk_heads.default, grad, wide, self.before, 0)
        counts = self._counts(len(sizes))
        return partita.fold.default(grad, before, behind, self.dim, counts, sizes)


def _widen(halos: list[_Halo], x: Any, sizes: list[int], fill: float) -> Any:
    for halo in halos:
        x = halo.widen(x, sizes, fill)
        sizes = halo.widened(sizes)
    return x


def _fold(halos: list[_Halo], grad: Any, sizes: list[int]) -> Any:
    shapes = [sizes]
    for halo in halos:
        shapes.append(halo.widened(shapes[-1]))
    for halo, shape in zip(reversed(halos), reversed(shapes[:-1]), strict=True):
        grad = halo.fold(grad, shape)
    return grad


def _wide(halos: list[_Halo], sizes: list[int]) -> list[int]:
    for halo in halos:
        sizes = halo.widened(sizes)
    return sizes


def _counts(halos: list[_Halo], ndim: int) -> list[int]:
    counts = [1] * ndim
    for halo in halos:
        counts[halo.dim] = halo.num
    return counts


def _without_padding(halos: list[_Halo], padding: list[int], ndim: int) -> list[int]:
    cut = {halo.dim - (ndim - len(padding)) for halo in halos}
    return [0 if at in cut else pad for at, pad in enumerate(padding)]


def _convolved(
    call: Call, position: int, image: int
) -> tuple[list[_Halo], tuple[Any, ...]] | None:
    """Return the halos of a convolution, and its arguments from the stride on."""
    x, weight = call.operands[image : image + 2]
    stride, padding, dilation = (ints(arg) for arg in call.args[position:][:3])
    kernel = list(weight.shape[2:])
    window = {
        "kernel": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
    }
    halos = _Halo.of(call, x.shape, window)
    if halos is None:
        return None
    inner = _without_padding(halos, padding, x.ndim)
    return halos, (stride, inner, dilation, call.args[position + 5])


def convolution(call: Call, x: Any, weight: Any, *bias: Any) -> tuple[Any, ...] | None:
    """Take apart ``convolution``, whose stride is argument 3."""
    found, result = _convolved(call, 3, 0), call.results[0]
    assert result is not None
    if found is None:
        return None
    halos, rest = found
    wide = _widen(halos, x, list(call.operands[0].shape), 0)
    sizes = list(result.shape)
    counts = _counts(halos, len(sizes))
    given = bias[0] if bias else None
    out = partita.chunked_convolution.default(wide, weight, given, *rest, counts, sizes)
    return (out,)


def convolution_backward(
    call: Call, grad: Any, x: Any, weight: Any
) -> tuple[Any, ...] | None:
    """Take apart ``convolution_backward``, whose stride is argument 4."""
    taken = _convolved(call, 4, 1)
    if taken is None:
        return None
    halos, rest = taken
    _, image, filters = call.operands
    sizes, shape = list(image.shape), list(filters.shape)
    wide, counts = _wide(halos, sizes), _counts(halos, image.ndim)
    found: list[Any] = [None, None, None]
    mask: Any = call.args[10]
    if mask[0]:
        inner = partita.chunked_convolution_input.default(
            grad, weight, *rest, counts, wide
        )
        found[0] = _fold(halos, inner, sizes)
    if mask[1]:
        num = counts[2:]
        shares = partita.chunked_convolution_weight.default(
            *(grad, _widen(halos, x, sizes, 0), *rest),
            *([*num, *[1] * len(shape)], [*num, *shape]),
        )
        found[1] = aten.sum.dim_IntList(shares, list(range(len(num))))
    if mask[2] and call.results[2] is not None:
        dims = [dim for dim in range(image.ndim) if dim != 1]
        found[2] = aten.sum.dim_IntList(grad, dims)
    return tuple(found)
