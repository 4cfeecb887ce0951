"""Ops on the chunks of a dim: scans within them, and the rows that neighbours lend.

``chunks`` says of each dim of the result how many chunks it has, cut as ``torch.chunk``
cuts, and ``sizes`` are those of the result. The logical program has all chunks and a
rank has one, so that what an op does is the same on one rank as on all of them.

Chunk ``i`` is lent rows by its neighbours as blocks. One block more than there are
chunks stands for what is outside, so that the loan is a change of segments: blocks
``0 1 2 -`` are made as ``S(0; 3|1)``, one by each rank, and are used as ``S(0; 1|3)``,
each by the rank before the one that made it.

Source: halo exchange for convolutions split in space, Dryden et al., "Improving
Strong-Scaling of CNN Training by Exploiting Finer-Grained Parallelism",
arXiv:1903.06681, section III; here as a change of placement like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from partita.compiler.rules.fakes import of_sizes

aten = torch.ops.aten

SCANS = {
    "cumsum": aten.cumsum.default,
    "cumprod": aten.cumprod.default,
    "logcumsumexp": aten.logcumsumexp.default,
}
"""The ops that ``scan`` does within chunks, by name."""

EXTREMES = {"cummax": aten.cummax.default, "cummin": aten.cummin.default}
"""The same of ``scan_extreme``."""


def chunks_of(x: Tensor, dim: int, num: int) -> list[Tensor]:
    """Return the chunks of a dim, none of which is empty."""
    step = -(-x.shape[dim] // num)
    return list(torch.split(x, max(step, 1), dim))


# Scans


@torch.library.custom_op("partita::scan", mutates_args=())
def scan(
    x: Tensor, dim: int, kind: str, chunks: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """Return ``x`` scanned along ``dim``, every chunk by itself."""
    parts = chunks_of(x, dim, chunks[dim])
    return torch.cat([SCANS[kind](part, dim) for part in parts], dim)


scan.register_fake(of_sizes(0))


@torch.library.custom_op("partita::scan_extreme", mutates_args=())
def scan_extreme(
    x: Tensor,
    positions: Tensor,
    dim: int,
    kind: str,
    chunks: Sequence[int],
    sizes: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Return the extreme so far within each chunk, and the position it stands at.

    ``positions`` are the logical indices of what is here along ``dim``.
    """
    held = chunks_of(positions, 0, chunks[dim])
    found = [EXTREMES[kind](part, dim) for part in chunks_of(x, dim, chunks[dim])]
    places = [at[index] for at, (_, index) in zip(held, found, strict=True)]
    return torch.cat([value for value, _ in found], dim), torch.cat(places, dim)


scan_extreme.register_fake(of_sizes(0, 1))


@torch.library.custom_op("partita::chunk_ends", mutates_args=())
def chunk_ends(
    x: Tensor, dim: int, chunks: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """Return the last element of each chunk of ``dim``, one after another."""
    parts = chunks_of(x, dim, chunks[dim])
    return torch.cat([p.narrow(dim, p.shape[dim] - 1, 1) for p in parts], dim)


chunk_ends.register_fake(of_sizes(0))


@torch.library.custom_op("partita::chunk_fill", mutates_args=())
def chunk_fill(
    x: Tensor, like: Tensor, dim: int, chunks: Sequence[int], sizes: Sequence[int]
) -> Tensor:
    """Return the chunks of ``like`` filled with the elements of ``x``, one for each."""
    parts = [
        x.narrow(dim, index, 1).expand(part.shape)
        for index, part in enumerate(chunks_of(like, dim, chunks[dim]))
    ]
    return torch.cat(parts, dim)


chunk_fill.register_fake(of_sizes(0))


# Rows of neighbours


@torch.library.custom_op("partita::chunk_heads", mutates_args=())
def chunk_heads(
    x: Tensor,
    dim: int,
    rows: int,
    fill: float,
    chunks: Sequence[int],
    sizes: Sequence[int],
) -> Tensor:
    """Return the first rows of each chunk as blocks ``[block, *x]``, then ``fill``.

    Args:
        x: the chunks that are here.
        dim: which is in chunks.
        rows: how many rows of each.
        fill: what the block behind the last chunk is filled with.
        chunks: ``[num, 1, ...]``.
        sizes: those of the blocks, of which ``sizes[0] - num`` are filled.
    """
    parts = [part.narrow(dim, 0, rows) for part in chunks_of(x, dim, chunks[0])]
    outside = x.new_full([sizes[0] - chunks[0], *sizes[1:]], fill)
    return torch.cat([torch.stack(parts), outside])


@torch.library.custom_op("partita::chunk_tails", mutates_args=())
def chunk_tails(
    x: Tensor,
    dim: int,
    rows: int,
    fill: float,
    chunks: Sequence[int],
    sizes: Sequence[int],
) -> Tensor:
    """Return ``fill``, then the last rows of each chunk; else as ``chunk_heads``."""
    parts = [
        part.narrow(dim, part.shape[dim] - rows, rows)
        for part in chunks_of(x, dim, chunks[0])
    ]
    outside = x.new_full([sizes[0] - chunks[0], *sizes[1:]], fill)
    return torch.cat([outside, torch.stack(parts)])


chunk_heads.register_fake(of_sizes(0))
chunk_tails.register_fake(of_sizes(0))


@torch.library.custom_op("partita::widen", mutates_args=())
def widen(
    x: Tensor,
    before: Tensor | None,
    behind: Tensor | None,
    dim: int,
    chunks: Sequence[int],
    sizes: Sequence[int],
) -> Tensor:
    """Return each chunk with its neighbours' rows around it.

    Args:
        x: the chunks that are here.
        before: blocks of which the first are the rows before each chunk.
        behind: blocks of which the last are the rows behind each chunk.
        dim: which is in chunks.
        chunks: how many of each dim.
        sizes: those of the result.
    """
    num = chunks[dim]
    found: list[Tensor] = []
    for index, part in enumerate(chunks_of(x, dim, num)):
        found += [] if before is None else [before[index]]
        found += [part]
        found += [] if behind is None else [behind[behind.shape[0] - num + index]]
    return torch.cat(found, dim)


@torch.library.custom_op("partita::fold", mutates_args=())
def fold(
    x: Tensor,
    before: Tensor | None,
    behind: Tensor | None,
    dim: int,
    chunks: Sequence[int],
    sizes: Sequence[int],
) -> Tensor:
    """Take the rows around each chunk away, and add what neighbours have for it.

    This is the adjoint of ``widen``, as gradients go.

    Args:
        x: chunks with rows around them.
        before: blocks of which the first are added to the first rows of each chunk.
        behind: blocks of which the last are added to the last rows of each chunk.
        dim: which is in chunks.
        chunks: how many of each dim.
        sizes: those of the result.
    """
    num = chunks[dim]
    # A neighbour has as many rows for the end of a chunk as this has before its own.
    start = 0 if behind is None else behind.shape[dim + 1]
    stop = 0 if before is None else before.shape[dim + 1]
    found: list[Tensor] = []
    for index, part in enumerate(chunks_of(x, dim, num)):
        size = part.shape[dim] - start - stop
        own = part.narrow(dim, start, size).clone()
        if before is not None:
            own.narrow(dim, 0, stop).add_(before[index])
        if behind is not None:
            place = behind.shape[0] - num + index
            own.narrow(dim, size - start, start).add_(behind[place])
        found.append(own)
    return torch.cat(found, dim)


widen.register_fake(of_sizes(0))
fold.register_fake(of_sizes(0))
