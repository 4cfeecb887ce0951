"""Rows that chunks lend to each other, in the logical program."""

import torch

from partita.compiler.rules import chunk_ops as chunk_ops  # defines the ops

partita = torch.ops.partita


def test_a_block_more_than_there_are_chunks_is_what_is_outside() -> None:
    x = torch.arange(5.0)

    heads = partita.chunk_heads(x, 0, 1, -1.0, [2, 1], [3, 1])
    tails = partita.chunk_tails(x, 0, 2, -1.0, [2, 1], [3, 2])

    assert heads.tolist() == [[0], [3], [-1]]
    assert tails.tolist() == [[-1, -1], [1, 2], [3, 4]]


def test_each_chunk_stands_between_rows_of_its_neighbours() -> None:
    x = torch.arange(5.0)
    heads = partita.chunk_heads(x, 0, 1, -1.0, [2, 1], [3, 1])
    tails = partita.chunk_tails(x, 0, 1, -1.0, [2, 1], [3, 1])

    wide = partita.widen(x, tails, heads, 0, [2], [9])

    assert wide.tolist() == [-1, 0, 1, 2, 3, 2, 3, 4, -1]


def test_folding_is_the_adjoint_of_widening() -> None:
    generator = torch.Generator().manual_seed(0)
    x, wide = (torch.randn(size, generator=generator) for size in (7, 13))
    sent = {"before": 2, "behind": 1}
    tails = partita.chunk_tails(x, 0, sent["before"], 0.0, [2, 1], [3, 2])
    heads = partita.chunk_heads(x, 0, sent["behind"], 0.0, [2, 1], [3, 1])
    widened = partita.widen(x, tails, heads, 0, [2], [13])

    back_tails = partita.chunk_tails(wide, 0, sent["behind"], 0.0, [2, 1], [3, 1])
    back_heads = partita.chunk_heads(wide, 0, sent["before"], 0.0, [2, 1], [3, 2])
    folded = partita.fold(wide, back_tails, back_heads, 0, [2], [7])

    torch.testing.assert_close(widened.dot(wide), x.dot(folded))
