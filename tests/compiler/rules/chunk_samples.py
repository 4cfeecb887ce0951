"""Calls of the ops that work on chunks of a dim, and calls that are taken apart so.

Two, three and four chunks are what the prover's meshes cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tests.compiler.rules.rule_values import call, ints, x
from torch import Tensor

from partita.testing.prover import Sample

aten = torch.ops.aten
partita = torch.ops.partita


def scans() -> Iterator[Sample]:
    yield call("cumsum", x(7, 5), 0)
    yield call("cumsum", ints(0, 5, 4, 8), -1)
    yield call("cumsum", x(8).float(), 0, dtype=torch.float64)
    yield call("cumprod", x(4, 8), 1)
    yield call("logcumsumexp", x(9, 2), 0)
    yield call("cummax", torch.cat([x(4, 6), x(4, 6)], 1), 1)
    yield call("cummin", x(8, 3), 0)


def parts_of_scans() -> Iterator[Sample]:
    for num, size in ((2, 5), (3, 8), (4, 8)):
        counts, sizes = [1, num], [4, size]
        for kind in ("cumsum", "cumprod", "logcumsumexp"):
            yield call("partita.scan", x(4, size), 1, kind, counts, sizes)
        for kind in ("cummax", "cummin"):
            held = torch.arange(size)
            given = (1, kind, counts, sizes)
            yield call("partita.scan_extreme", x(4, size), held, *given)
        yield call("partita.chunk_ends", x(4, size), 1, counts, [4, num])
        filled = (x(4, num), x(4, size), 1, counts, sizes)
        yield call("partita.chunk_fill", *filled)


def loans() -> Iterator[Sample]:
    for num, size in ((2, 5), (3, 8), (4, 8)):
        counts, blocks = [num, 1, 1], [num + 1, 4, 2]
        for op in ("chunk_heads", "chunk_tails"):
            yield call(f"partita.{op}", x(4, size), 1, 2, -1.0, counts, blocks)
        before, behind = x(num + 1, 4, 2), x(num + 1, 4, 1)
        wide = [4, size + 3 * num]
        around = (before, behind, 1, [1, num])
        yield call("partita.widen", x(4, size), *around, wide)
        yield call(
            "partita.widen", x(4, size), None, behind, 1, [1, num], [4, size + num]
        )
        around = (behind, before, 1, [1, num])
        yield call("partita.fold", x(*wide), *around, [4, size])
        yield call(
            "partita.fold", x(4, size + num), behind, None, 1, [1, num], [4, size]
        )


def tiles() -> Iterator[Sample]:
    for num, size in ((2, 7), (3, 8), (4, 8)):
        yield from _convolution([num], [size + 2 * num], [size], [3], 1)
    yield from _convolution([2, 2], [12, 12], [8, 8], [3, 3], 2)
    yield from _convolution([1, 4], [4, 16], [4, 8], [3, 3], 1)
    yield from _convolution([1, 2, 1], [2, 8, 2], [2, 4, 2], [3, 3, 3], 1)


def _convolution(
    chunks: list[int],
    inner: list[int],
    outer: list[int],
    kernel: list[int],
    groups: int,
) -> Iterator[Sample]:
    num = len(chunks)
    padding = [1 if n == 1 else 0 for n in chunks]
    rest = ([1] * num, padding, [1] * num, groups)
    image, weight = x(2, 4, *inner), x(6, 4 // groups, *kernel)
    counts, sizes = [1, 1, *chunks], [2, 6, *outer]
    for bias in (None, x(6)):
        given = (image, weight, bias, *rest, counts, sizes)
        yield call("partita.chunked_convolution", *given)
    grad, whole = x(*sizes), list(image.shape)
    yield call("partita.chunked_convolution_input", grad, weight, *rest, counts, whole)
    shares = [*chunks, 1, 1, *[1] * num], [*chunks, *weight.shape]
    yield call("partita.chunked_convolution_weight", grad, image, *rest, *shares)


def convolutions() -> Iterator[Sample]:
    """Yield convolutions whose chunks of space map through the stride."""
    yield from _strided(x(2, 1, 7, 8), x(4, 1, 3, 3), x(4), 1, 1, 1, 1)
    yield from _strided(x(1, 2, 16, 12), x(1, 2, 7, 7), None, 2, 3, 1, 1)
    yield from _strided(x(1, 2, 16, 12), x(4, 2, 2, 2), x(4), 2, 0, 1, 1)
    yield from _strided(x(1, 2, 8, 8), x(4, 2, 1, 1), None, 2, 0, 1, 1)
    yield from _strided(x(2, 4, 12), x(4, 1, 3), x(4), 1, 2, 2, 4)
    yield from _strided(x(1, 1, 6, 4, 4), x(2, 1, 3, 3, 3), None, 1, 1, 1, 1)


def _strided(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: int,
    padding: int,
    dilation: int,
    groups: int,
) -> Iterator[Sample]:
    num = image.ndim - 2
    steps = ([stride] * num, [padding] * num, [dilation] * num)
    rest = (*steps, False, [0] * num, groups)
    yield call("convolution", image, weight, bias, *rest)
    grad = x(*aten.convolution(image, weight, bias, *rest).shape)
    shape = None if bias is None else [weight.shape[0]]
    wanted = [True, True, bias is not None]
    yield call("convolution_backward", grad, image, weight, shape, *rest, wanted)


def pools() -> Iterator[Sample]:
    """Yield pools whose chunks of space map through the stride."""
    for kernel, padding in (([2, 2], [0, 0]), ([3, 3], [1, 1])):
        yield from _maximum(x(1, 2, 16, 12), kernel, [2, 2], padding)
    yield from _maximum(x(2, 5, 8), [3, 1], [1, 1], [1, 0])
    yield call("avg_pool2d", x(2, 6, 8), [2, 2])
    yield call("avg_pool2d", x(1, 8, 8), [3], [1], [1])
    yield call("max_pool2d_with_indices", x(1, 8, 8), [3], [1], [1])
    yield call(
        "avg_pool2d_backward", x(2, 3, 4), x(2, 6, 8), [2, 2], [], [0, 0], *_AVERAGE
    )
    yield call("avg_pool3d", x(1, 1, 6, 4, 8), [2, 1, 4])


_AVERAGE = (False, True, None)


def _maximum(
    image: Tensor, kernel: list[int], stride: list[int], padding: list[int]
) -> Iterator[Sample]:
    rest = (kernel, stride, padding)
    yield call("max_pool2d_with_indices", image, *rest)
    out, found = aten.max_pool2d_with_indices(image, *rest)
    given = (x(*out.shape), image, *rest, [1, 1], False, found)
    yield call("max_pool2d_with_indices_backward", *given)


def parts_of_pools() -> Iterator[Sample]:
    for chunks in ([1, 2], [2, 2], [3, 1], [4, 1]):
        # Of 3 x 1 windows of padded rows; chunks of columns have none around them.
        lent = [1 if chunks[0] > 1 else 0, 0]
        wide = [2, 8 + 2 * chunks[0] * lent[0], 4]
        steps = [3, 1], [1, 1], [0 if lent[0] else 1, 0], False
        held, rest = (torch.arange(8), torch.arange(4)), (lent, [8, 4])
        counts = [1, *chunks]
        given = (x(*wide), *held, *steps, *rest, counts, [2, 8, 4])
        yield call("partita.chunked_max_pool", *given)
        _, found = partita.chunked_max_pool(*given)
        back = (x(2, 8, 4), found, *held, *rest, counts, wide)
        yield call("partita.chunked_max_pool_backward", *back)


GROUPS = (
    scans,
    parts_of_scans,
    loans,
    tiles,
    convolutions,
    pools,
    parts_of_pools,
)
