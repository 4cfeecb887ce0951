"""Indexing of tensors of which a rank holds some rows, and knows which.

``positions`` are the logical indices of the rows that are here, in rising order: all of
them in the logical program (``arange``), a rank's own where the indexed dim is split.
What is looked up elsewhere reads as zero, so that results add up over the ranks; what
is put elsewhere is dropped, so that each rank keeps its rows.

Source: the vocabulary-parallel embedding of Shoeybi et al., "Megatron-LM",
arXiv:1909.08053, section 3; here for any dims and chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from partita.compiler.rules.fakes import like_first


def _locate(positions: Tensor, index: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return where each logical index is among ``positions``, and whether it is."""
    index = index.to(torch.int64)
    index = torch.where(index < 0, index + size, index)
    if positions.numel() == 0:
        return torch.zeros_like(index), torch.zeros_like(index, dtype=torch.bool)
    at = torch.searchsorted(positions, index.contiguous())
    at = at.clamp(max=positions.numel() - 1)
    return at, positions[at] == index


def _locate_all(
    positions: Sequence[Tensor], indices: Sequence[Tensor], sizes: Sequence[int]
) -> tuple[list[Tensor], Tensor]:
    located = [
        _locate(held, index, size)
        for held, index, size in zip(positions, indices, sizes, strict=True)
    ]
    here = located[0][1]
    for _, found in located[1:]:
        here = here & found
    return [at for at, _ in located], here


def _at(
    ndim: int, dims: Sequence[int], indices: Sequence[Tensor]
) -> list[Tensor | None]:
    at: list[Tensor | None] = [None] * ndim
    for dim, index in zip(dims, indices, strict=True):
        at[dim] = index
    return at


def _among(here: Tensor, ndim: int, dims: Sequence[int]) -> Tensor:
    """Return ``here`` so that it broadcasts to what indexing ``dims`` returns."""
    first = dims[0] if list(dims) == list(range(dims[0], dims[-1] + 1)) else 0
    behind = ndim - len(dims) - first
    return here.reshape([*here.shape, *[1] * behind])


def _with_spare_row(x: Tensor, dim: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = 1
    return torch.cat([x, x.new_zeros(shape)], dim)


def look_up(
    x: Tensor,
    positions: Sequence[Tensor],
    dims: Sequence[int],
    sizes: Sequence[int],
    indices: Sequence[Tensor],
) -> Tensor:
    """Return ``x`` indexed along ``dims``; zeros where a row is not here.

    Args:
        x: the rows that are here.
        positions: per indexed dim, 1-D int64, which rows those are.
        dims: the indexed dims, rising.
        sizes: their logical sizes.
        indices: per indexed dim, logical indices; they broadcast to one shape.
    """
    at, here = _locate_all(positions, indices, sizes)
    if any(held.numel() == 0 for held in positions):
        return x.new_zeros(_index_type(x, positions, dims, sizes, indices).shape)
    found = torch.ops.aten.index.Tensor(x, _at(x.ndim, dims, at))
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(_among(here, x.ndim, dims), found, zero).contiguous()


index = torch.library.custom_op("partita::index", look_up, mutates_args=())


@index.register_fake
def _index_type(
    x: Tensor,
    positions: Sequence[Tensor],
    dims: Sequence[int],
    sizes: Sequence[int],
    indices: Sequence[Tensor],
) -> Tensor:
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    first = dims[0] if list(dims) == list(range(dims[0], dims[-1] + 1)) else 0
    others = [size for dim, size in enumerate(x.shape) if dim not in dims]
    return x.new_empty([*others[:first], *shape, *others[first:]])


@torch.library.custom_op("partita::index_put", mutates_args=())
def index_put(
    x: Tensor,
    positions: Sequence[Tensor],
    dims: Sequence[int],
    sizes: Sequence[int],
    indices: Sequence[Tensor],
    values: Tensor,
    accumulate: bool,
) -> Tensor:
    """Return ``x`` with ``values`` put, or added, where ``indices`` are here.

    The arguments are those of ``index``; ``values`` broadcasts to what it returns.
    """
    if any(held.numel() == 0 for held in positions):
        return x.clone(memory_format=torch.contiguous_format)
    at, here = _locate_all(positions, indices, sizes)
    if accumulate:  # nothing is added for what belongs to other ranks
        zero = torch.zeros((), dtype=values.dtype, device=values.device)
        values = torch.where(_among(here, x.ndim, dims), values, zero)
        wide = x
    else:  # a row to spare takes it
        at = [torch.where(here, at[0], x.shape[dims[0]]), *at[1:]]
        wide = _with_spare_row(x, dims[0])
    put = torch.ops.aten.index_put.default(
        wide, _at(x.ndim, dims, at), values, accumulate
    )
    return put.narrow(dims[0], 0, x.shape[dims[0]]).contiguous()


index_put.register_fake(like_first)


def pick(x: Tensor, position: Tensor, dim: int, size: int, index: Tensor) -> Tensor:
    """Return what ``index`` gathers along ``dim``; zeros where a row is not here."""
    at, here = _locate(position, index, size)
    if position.numel() == 0:
        return x.new_zeros(index.shape)
    found = torch.ops.aten.gather.default(x, dim, at)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(here, found, zero)


gather = torch.library.custom_op("partita::gather", pick, mutates_args=())


@gather.register_fake
def _gather_type(
    x: Tensor, position: Tensor, dim: int, size: int, index: Tensor
) -> Tensor:
    return x.new_empty(index.shape)


@torch.library.custom_op("partita::scatter", mutates_args=())
def scatter(
    x: Tensor,
    position: Tensor,
    dim: int,
    size: int,
    index: Tensor,
    source: Tensor,
    accumulate: bool,
) -> Tensor:
    """Return ``x`` with ``source`` scattered, or added, where ``index`` is here."""
    if position.numel() == 0:
        return x.clone(memory_format=torch.contiguous_format)
    at, here = _locate(position, index, size)
    source = source[tuple(slice(length) for length in index.shape)]
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    if accumulate:  # nothing is added for what belongs to other ranks
        added = torch.where(here, source, zero)
        return torch.ops.aten.scatter_add.default(x, dim, at, added).contiguous()
    if index.shape[dim] == 1:  # where one is put in a row, it may be what is there
        there = torch.ops.aten.gather.default(x, dim, at)
        put = torch.where(here, source, there)
        return torch.ops.aten.scatter.src(x, dim, at, put).contiguous()
    at = torch.where(here, at, x.shape[dim])  # a row to spare takes it
    wide = torch.ops.aten.scatter.src(_with_spare_row(x, dim), dim, at, source)
    return wide.narrow(dim, 0, x.shape[dim]).contiguous()


scatter.register_fake(like_first)


def scatter_by_comparing(
    x: Tensor,
    position: Tensor,
    dim: int,
    size: int,
    index: Tensor,
    source: Tensor,
    accumulate: bool,
) -> Tensor:
    """Compute ``scatter`` element by element, where one is put in each row.

    Alone that takes longer. As a part of what is computed of the result it takes
    nothing: no tensor is made.
    """
    rows = list(x.shape)
    rows[dim] = 1
    if [*index.shape] != rows or [*source.shape] != rows:
        return NotImplemented
    shape = [1] * x.ndim
    shape[dim] = -1
    index = torch.where(index < 0, index + size, index)
    put = x + source if accumulate else source
    return torch.where(position.view(shape) == index, put, x)
