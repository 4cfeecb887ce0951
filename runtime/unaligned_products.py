"""Multiply large matrices on a CPU where the rows of the product are not aligned.

A matrix in single precision whose rows are no whole number of vectors long, as the
logits of 50,257 tokens are, takes MKL a third longer to write than one whose rows all
begin at a vector (one thread of an EPYC, AVX-512; half and double precision gain
nothing). So they may have gaps behind them. Where there may be none, some columns at a
time are made in a buffer that lies in the cache, and copied: that is about as fast.
Milliseconds of 512 x 256 by 256 x 50,257: 308 as it is, 211 and 203
(``benchmarks/unaligned_products.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from partita.compiler.ir.program import has_info, info

aten, partita = torch.ops.aten, torch.ops.partita

NUM_BYTES = 32
"""What aligned rows begin at a multiple of."""

SHORT = 1024
"""Numbers of a row that is too short to gain."""

_LEAST_BYTES = 2**20  # of a product that is worth another call
_AT_A_TIME = 512  # columns


@torch.library.custom_op("partita::mm_by_columns", mutates_args=())
def mm_by_columns(x: Tensor, y: Tensor) -> Tensor:
    """Return the product of two matrices."""
    made, room = _empty(x, y), with_gaps(x, _AT_A_TIME)
    for part, columns in zip(_cut(made), _cut(y), strict=True):
        own = room.narrow(1, 0, part.shape[1])
        part.copy_(torch.mm(x, columns, out=own))
    return made


@torch.library.custom_op("partita::addmm_by_columns", mutates_args=())
def addmm_by_columns(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return the product of two matrices and a bias."""
    made, room = _empty(x, y), with_gaps(x, _AT_A_TIME)
    every = _cut(made), _cut(bias.expand_as(made)), _cut(y)
    for part, added, columns in zip(*every, strict=True):
        own = room.narrow(1, 0, part.shape[1])
        part.copy_(torch.addmm(added, x, columns, out=own))
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


def _cut(matrix: Tensor) -> tuple[Tensor, ...]:
    """Return the columns of a matrix, some at a time."""
    return matrix.split(_AT_A_TIME, 1)
