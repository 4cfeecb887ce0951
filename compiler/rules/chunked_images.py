"""Convolutions and pools of images in chunks, with the neighbours' rows around each.

Of the dims that are in chunks nothing is padded: the rows that a window needs are
there, and those behind the last window are not used. ``chunks`` and ``sizes`` end the
arguments, as in ``chunk_ops.py``; a convolution's groups stand before them, and follow
from the channels of its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from partita.compiler.ir.layout import chunk
from partita.compiler.rules.chunk_ops import chunks_of
from partita.compiler.rules.fakes import of_sizes

aten = torch.ops.aten

Ints = Sequence[int]


def tiles_of(x: Tensor, chunks: Ints) -> list[Tensor]:
    """Return the chunks of all of the last dims, first dims outermost."""
    first = x.ndim - len(chunks)
    found: list[Tensor] = []
    for at in product(*(range(num) for num in chunks)):
        tile = x
        for dim, (index, num) in enumerate(zip(at, chunks, strict=True)):
            tile = chunks_of(tile, first + dim, num)[index]
        found.append(tile)
    return found


def joined_tiles(tiles: list[Tensor], chunks: Ints) -> Tensor:
    """Undo ``tiles_of``."""
    for dim, num in reversed(list(enumerate(chunks))):
        at = dim - len(chunks)
        tiles = [torch.cat(tiles[i : i + num], at) for i in range(0, len(tiles), num)]
    return tiles[0]


def _lengths(size: int, num: int) -> list[int]:
    bounds = [chunk(size, num, index) for index in range(num)]
    return [stop - start for start, stop in bounds]


def tile_shapes(sizes: Ints, chunks: Ints) -> list[tuple[int, ...]]:
    """Return the last sizes of the tiles of an image, first dims outermost."""
    pairs = zip(sizes[-len(chunks) :], chunks, strict=True)
    return list(product(*(_lengths(size, num) for size, num in pairs)))


@dataclass(frozen=True)
class Sliding:
    """A window that slides over the last dims, one entry of each for every dim."""

    kernel: Ints
    stride: Ints
    dilation: Ints

    def used(self, x: Tensor, image: Ints) -> Tensor:
        """Return a view of a tile without the rows that none of its windows covers.

        ``image`` are the last sizes of what is made of it. Of a dim that is padded
        nothing is taken away that matters.
        """
        for dim, count in enumerate(image):
            rows = (count - 1) * self.stride[dim] + 1
            rows += (self.kernel[dim] - 1) * self.dilation[dim]
            at = x.ndim - len(image) + dim
            x = x.narrow(at, 0, min(rows, x.shape[at]))
        return x


def _padded_to(x: Tensor, sizes: Ints) -> Tensor:
    """Return ``x`` with zeros behind it in every dim, up to ``sizes``."""
    pads = [n for d in reversed(range(x.ndim)) for n in (0, sizes[d] - x.shape[d])]
    return aten.constant_pad_nd.default(x, pads, 0)


# Convolutions


@torch.library.custom_op("partita::chunked_convolution", mutates_args=())
def chunked_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    chunks: Sequence[int],
    sizes: Sequence[int],
) -> Tensor:
    """Return the convolution of each tile by itself, joined.

    Args:
        x: images whose chunks have rows around them.
        weight: as that of ``aten.convolution``.
        bias: likewise.
        stride: per spatial dim.
        padding: per spatial dim, 0 where it is in chunks.
        dilation: per spatial dim.
        groups: of the logical channels.
        chunks: how many of each dim.
        sizes: those of the result.
    """
    space = chunks[2:]
    window = Sliding(weight.shape[2:], stride, dilation)
    own = x.shape[1] // weight.shape[1]
    rest = (stride, padding, dilation, False, [0] * len(space), own)
    tiles = [
        aten.convolution.default(window.used(tile, image), weight, bias, *rest)
        for tile, image in zip(
            tiles_of(x, space), tile_shapes(sizes, space), strict=True
        )
    ]
    return joined_tiles(tiles, space)


chunked_convolution.register_fake(of_sizes(0))


@torch.library.custom_op("partita::chunked_convolution_input", mutates_args=())
def chunked_convolution_input(
    grad: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    chunks: Sequence[int],
    sizes: Sequence[int],
) -> Tensor:
    """Return the gradient of the images that ``chunked_convolution`` was given."""
    space = chunks[2:]
    window = Sliding(weight.shape[2:], stride, dilation)
    own = sizes[1] // weight.shape[1]
    rest = (None, stride, padding, dilation, False, [0] * len(space), own)
    tiles: list[Tensor] = []
    for tile, image in zip(
        tiles_of(grad, space), tile_shapes(sizes, space), strict=True
    ):
        whole = [*sizes[:2], *image]
        x = window.used(grad.new_empty(whole), tile.shape[2:])
        mask = [True, False, False]
        found = aten.convolution_backward.default(tile, x, weight, *rest, mask)[0]
        tiles.append(_padded_to(found, whole))
    return joined_tiles(tiles, space)


chunked_convolution_input.register_fake(of_sizes(0))


@torch.library.custom_op("partita::chunked_convolution_weight", mutates_args=())
def chunked_convolution_weight(
    grad: Tensor,
    x: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    chunks: Sequence[int],
    sizes: Sequence[int],
) -> Tensor:
    """Return what each tile adds to the weight's gradient.

    ``sizes`` are those of the weight behind the numbers of chunks: a rank has the
    share of its own.
    """
    num = grad.ndim - 2
    space, shape = chunks[:num], list(sizes[num:])
    window = Sliding(shape[2:], stride, dilation)
    own = x.shape[1] // shape[1]
    rest = (None, stride, padding, dilation, False, [0] * num, own)
    weight = grad.new_empty(shape)
    found: list[Tensor] = []
    for tile, image in zip(tiles_of(x, space), tiles_of(grad, space), strict=True):
        used = window.used(tile, image.shape[2:])
        mask = [False, True, False]
        shares = aten.convolution_backward.default(image, used, weight, *rest, mask)
        found.append(shares[1])
    return torch.stack(found).reshape(list(sizes))


chunked_convolution_weight.register_fake(of_sizes(0))
