"""Multiply large matrices on a CPU where the rows of the product are not aligned.

A matrix in single precision whose rows are no whole number of vectors long, as the
logits of 50,257 tokens are, takes MKL up to two thirds longer to write than one whose
rows all begin at a vector (one thread of an EPYC, AVX-512; half and double precision
gain nothing). So they may have gaps behind them. Where there may be none, a block at a
time is made in a buffer that lies in the cache, and copied: that is nearly as fast.
Milliseconds of 512 x 256 by 256 x 50,257: 238 as it is, 175 and 163; of 2048 x 256 by
256 x 25,001: 509, 313 and 387 (``benchmarks/unaligned_products.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from partita.compiler.ir.program import has_info, info

aten, partita = torch.ops.aten, torch.ops.partita

NUM_BYTES = 32
"""What aligned rows begin at a multiple of."""

SHORT = 1024
"""Numbers of a row, up to which rows are left as they are."""

_LEAST_BYTES = 2**20  # of a product that is worth another call
_ROWS, _COLUMNS = 2048, 512  # at a time: room for 4 MiB


@torch.library.custom_op("partita::mm_by_columns", mutates_args=())
def mm_by_columns(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of ``x`` ``[rows, width]`` and ``y`` ``[width, columns]``."""
    made = _empty(x, y)
    for rows, columns, room in _blocks(made):
        made[rows, columns] = torch.mm(x[rows], y[:, columns], out=room)
    return made


@torch.library.custom_op("partita::addmm_by_columns", mutates_args=())
def addmm_by_columns(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return such a product and ``bias``, which is as wide, or one number a row."""
    made = _empty(x, y)
    added = bias.expand_as(made)
    for rows, columns, room in _blocks(made):
        given = added[rows, columns], x[rows], y[:, columns]
        made[rows, columns] = torch.addmm(*given, out=room)
    return made


@mm_by_columns.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return _empty(x, y)


@addmm_by_columns.register_fake
def _(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return _empty(x, y)


BY_COLUMNS: dict[Any, Any] = {
    aten.mm.default: partita.mm_by_columns.default,
    aten.addmm.default: partita.addmm_by_columns.default,
}
"""By a product's op the one that makes it some columns at a time."""


def multiply_by_columns(graph: fx.Graph) -> None:
    """Have one rank's program, that runs on a CPU, make such products by columns."""
    for node in graph.nodes:
        if node.target in BY_COLUMNS and not node.kwargs and has_info(node):
            types = filter(None, info(node).types)
            if any(is_unaligned(each.shape, each.dtype) for each in types):
                node.target = BY_COLUMNS[node.target]


def is_unaligned(shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether a product is a large one whose rows are not aligned."""
    rows, columns = shape
    num_bytes = columns * dtype.itemsize
    is_large = columns > SHORT and rows * num_bytes >= _LEAST_BYTES
    return dtype is torch.float32 and is_large and num_bytes % NUM_BYTES > 0


def with_gaps(x: Tensor, columns: int) -> Tensor:
    """Return a matrix, yet to be written, of as many rows as ``x``, aligned ones."""
    numbers = NUM_BYTES // x.element_size()
    stride = -(-columns // numbers) * numbers
    return x.new_empty_strided((x.shape[0], columns), (stride, 1))


def _empty(x: Tensor, y: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], y.shape[1])


def _blocks(made: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield the rows and the columns of each block of a product, and room for it."""
    num_rows, num_columns = made.shape
    every = made.new_empty(min(num_rows, _ROWS), _COLUMNS)
    for row in range(0, num_rows, _ROWS):
        rows = slice(row, min(row + _ROWS, num_rows))
        for column in range(0, num_columns, _COLUMNS):
            columns = slice(column, min(column + _COLUMNS, num_columns))
            room = every[: rows.stop - row, : columns.stop - column]
            yield rows, columns, room
