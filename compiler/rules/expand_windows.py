"""Convolutions and pools taken apart into chunks of space; see ``expand.py``.

A window sees the rows that neighbours lend its chunk; what a gradient adds to those
goes back to them. ``call.chunks`` says how many chunks there are of ``y0``, ``y1``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from partita.compiler.ir.layout import chunk
from partita.compiler.rules import chunk_ops as chunk_ops  # defines the ops
from partita.compiler.rules import chunked_images as chunked_images  # likewise
from partita.compiler.rules import chunked_pools as chunked_pools  # likewise
from partita.compiler.rules.expand_indexing import arange
from partita.compiler.rules.rule import Call
from partita.compiler.rules.windows import Window, of_convolution, of_pool

aten = torch.ops.aten
partita = torch.ops.partita


def _with(values: list[int], dim: int, value: int) -> list[int]:
    return [*values[:dim], value, *values[dim + 1 :]]


@dataclass(frozen=True)
class _Halo:
    """A spatial dim in chunks, and the rows that windows see around each of them."""

    dim: int
    num: int
    before: int
    behind: int

    @classmethod
    def of(
        cls, call: Call, shape: tuple[int, ...], windows: tuple[Window, ...]
    ) -> list[_Halo] | None:
        """Return those of a call; ``None`` where a chunk has fewer rows than it lends.

        Args:
            call: what is taken apart.
            shape: of the image.
            windows: one per spatial dim.
        """
        found: list[_Halo] = []
        for at, window in enumerate(windows):
            num = dict(call.chunks).get(f"y{at}", 1)
            dim = len(shape) - len(windows) + at
            start, stop = chunk(shape[dim], num, num - 1)
            if stop - start < max(window.before, window.behind, 1):
                return None
            if num > 1:
                found.append(cls(dim, num, window.before, window.behind))
        return found or None

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


def _convolved(
    call: Call, position: int, image: int
) -> tuple[list[_Halo], tuple[Any, ...]] | None:
    """Return the halos of a convolution, and its arguments from the stride on."""
    x, windows = call.operands[image], of_convolution(call, position, image)
    halos = _Halo.of(call, x.shape, windows)
    if halos is None:
        return None
    return halos, (*_steps(windows, halos, x.ndim), call.args[position + 5])


def _steps(
    windows: tuple[Window, ...], halos: list[_Halo], ndim: int
) -> tuple[list[int], list[int], list[int]]:
    """Return stride, padding and dilation; dims in chunks are padded already."""
    cut = {halo.dim - (ndim - len(windows)) for halo in halos}
    padding = [0 if at in cut else w.padding for at, w in enumerate(windows)]
    return [w.stride for w in windows], padding, [w.dilation for w in windows]


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


# Pools


def _pooled(call: Call, position: int, image: int) -> Any:
    """Return the halos of a maximum pool, its positions, and what says where it is.

    That is how many rows stand before those of a chunk, and the sizes of an image.
    """
    type_, windows = call.operands[image], of_pool(call, position)
    halos = _Halo.of(call, type_.shape, windows)
    if halos is None:
        return None
    before = {halo.dim: halo.before for halo in halos}
    first = type_.ndim - len(windows)
    lent = [before.get(first + at, 0) for at in range(len(windows))]
    return windows, halos, lent, list(type_.shape[first:])


def max_pool(call: Call, x: Any) -> tuple[Any, ...] | None:
    """Take apart ``max_pool2d_with_indices(x, kernel, stride, padding, ...)``."""
    taken, result = _pooled(call, 1, 0), call.results[0]
    assert result is not None
    if taken is None:
        return None
    windows, halos, lent, space = taken
    wide = _widen(halos, x, list(call.operands[0].shape), -inf)
    held = [arange(x, size) for size in space]
    stride, padding, _ = _steps(windows, halos, result.ndim)
    found = partita.chunked_max_pool.default(
        *(wide, *held, [w.kernel for w in windows], stride, padding),
        *(bool(call.arg(5, False)), lent, space),
        *(_counts(halos, result.ndim), list(result.shape)),
    )
    return found[0], found[1]


def max_pool_backward(
    call: Call, grad: Any, x: Any, indices: Any
) -> tuple[Any, ...] | None:
    """Take apart ``max_pool2d_with_indices_backward(grad, x, ..., indices)``."""
    taken = _pooled(call, 2, 1)
    if taken is None:
        return None
    _, halos, lent, space = taken
    sizes = list(call.operands[1].shape)
    held = [arange(grad, size) for size in space]
    inner = partita.chunked_max_pool_backward.default(
        *(grad, indices, *held, lent, space),
        *(_counts(halos, len(sizes)), _wide(halos, sizes)),
    )
    return (_fold(halos, inner, sizes),)
