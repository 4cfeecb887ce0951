"""Maximum pools of images in chunks, as ``chunked_images.py`` has convolutions.

Where a maximum stands is said by its index in the whole image, of which ``rows`` and
``columns`` are those that the chunks here have without their neighbours' rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from partita.compiler.rules.chunk_ops import chunks_of
from partita.compiler.rules.chunked_images import (
    Sliding,
    joined_tiles,
    tile_shapes,
    tiles_of,
)
from partita.compiler.rules.fakes import of_sizes

aten = torch.ops.aten

Ints = Sequence[int]


def _starts(
    rows: Tensor, columns: Tensor, before: Ints, chunks: Ints
) -> list[tuple[Tensor, ...]]:
    """Return the logical row and column at which each tile begins."""
    firsts = [
        [part[0] - lent for part in chunks_of(held, 0, num)]
        for held, lent, num in zip((rows, columns), before, chunks, strict=True)
    ]
    return list(product(*firsts))


@torch.library.custom_op("partita::chunked_max_pool", mutates_args=())
def chunked_max_pool(
    x: Tensor,
    rows: Tensor,
    columns: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    before: Sequence[int],
    space: Sequence[int],
    chunks: Sequence[int],
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return the maxima of each tile by itself, joined, and where they stand.

    Args:
        x: images whose chunks have rows around them.
        rows: the logical rows that are here, 1-D.
        columns: likewise.
        kernel: of ``aten.max_pool2d_with_indices``, as the next three.
        stride: see above.
        padding: 0 where a dim is in chunks.
        ceil_mode: see above.
        before: how many rows, and columns, stand before those of each chunk.
        space: the logical sizes of an image.
        chunks: how many of each dim.
        sizes: those of the result.
    """
    cuts = chunks[-2:]
    window = Sliding(kernel, stride, (1, 1))
    values: list[Tensor] = []
    places: list[Tensor] = []
    tiles = zip(
        tiles_of(x, cuts),
        tile_shapes(sizes, cuts),
        _starts(rows, columns, before, cuts),
        strict=True,
    )
    for tile, shape, (row, column) in tiles:
        value, index = aten.max_pool2d_with_indices.default(
            window.used(tile, shape), kernel, stride, padding, (1, 1), ceil_mode
        )
        width = window.used(tile, shape).shape[-1]
        # A window of nothing but -inf stands at the first element that is inside.
        at_row = (index // width + row).clamp(0, space[0] - 1)
        at_column = (index % width + column).clamp(0, space[1] - 1)
        values.append(value)
        places.append(at_row * space[1] + at_column)
    return joined_tiles(values, cuts), joined_tiles(places, cuts)


chunked_max_pool.register_fake(of_sizes(0, 1))


@torch.library.custom_op("partita::chunked_max_pool_backward", mutates_args=())
def chunked_max_pool_backward(
    grad: Tensor,
    indices: Tensor,
    rows: Tensor,
    columns: Tensor,
    before: Sequence[int],
    space: Sequence[int],
    chunks: Sequence[int],
    sizes: Sequence[int],
) -> Tensor:
    """Return the gradient of the images that ``chunked_max_pool`` was given.

    ``sizes`` are those of these images; the other arguments are as above.
    """
    cuts = chunks[-2:]
    found: list[Tensor] = []
    tiles = zip(
        tiles_of(grad, cuts),
        tiles_of(indices, cuts),
        tile_shapes(sizes, cuts),
        _starts(rows, columns, before, cuts),
        strict=True,
    )
    for tile, index, (height, width), (row, column) in tiles:
        at = (index // space[1] - row) * width + index % space[1] - column
        image = tile.new_zeros([*tile.shape[:-2], height * width])
        image = image.scatter_add(-1, at.flatten(-2), tile.flatten(-2))
        found.append(image.unflatten(-1, (height, width)))
    return joined_tiles(found, cuts)


chunked_max_pool_backward.register_fake(of_sizes(0))
