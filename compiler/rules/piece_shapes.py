"""Dims of ops that cut pieces off a dim, where each part has its share of every piece.

So are halves of a batch, as of pairs of texts or images that one model is run on: a
microbatch has a part of the first half and the same part of the second. So are rows
that a mask puts among others, where those of a part are the part's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules import part_ops as part_ops  # defines the ops
from partita.compiler.rules.rule import Call
from partita.compiler.rules.shapes import arrow, dim_names, ints


def slice_pieces(call: Call) -> str:
    """Share all dims; of the one that is cut, the pieces that are left out stay.

    >>> from partita.compiler.ir.tensor_type import TensorType
    >>> whole, half = TensorType.parse("f32[8, 3]"), TensorType.parse("f32[4, 3]")
    >>> slice_pieces(Call("slice", (whole, 0, 4, 8, 1), (), (whole,), (half,)))
    'n{4|4} d1 -> n{4} d1'
    >>> slice_pieces(Call("slice", (whole, 0, 1, 8, 2), (), (whole,), (half,)))
    '(n:4 s^:2) d1 -> n d1'
    """
    (dim,) = ints(call.args[1])
    whole, part = _pieces(call.operands[0].shape, dim, ints(call.args[2:5]))
    return arrow([whole], [part])


def slice_backward_pieces(call: Call) -> str:
    """Share all dims; pieces of zeros are put around the one that is given."""
    (dim,) = ints(call.args[2])
    (result,) = call.results
    assert result is not None
    whole, part = _pieces(result.shape, dim, ints(call.args[3:6]))
    return arrow([part], [whole])


def _pieces(shape: Sequence[int], dim: int, bounds: Sequence[int]) -> tuple[str, str]:
    """Name the dims of a tensor, and those of a slice of it along ``dim``."""
    names, out = dim_names(len(shape)), dim_names(len(shape))
    start, stop, step = slice(*bounds).indices(shape[dim])
    size = len(range(start, stop, step))
    if size == shape[dim]:
        pass
    elif not size:
        names[dim] = out[dim] = "?"
    elif step == 1:
        pieces = start, size, shape[dim] - start - size
        names[dim] = f"n{{{'|'.join(str(piece) for piece in pieces if piece)}}}"
        out[dim] = f"n{{{size}}}"
    elif start < step and size * step == shape[dim]:
        names[dim], out[dim] = f"(n:{size} s^:{step})", "n"
    else:
        names[dim] = out[dim] = "?"
    return " ".join(names), " ".join(out)


def masked_rows(call: Call) -> str:
    """Share the batch, outermost in what is written to, its mask and what is written.

    >>> x, mask = TensorType.parse("f32[4, 6, 8]"), TensorType.parse("b8[4, 6, 8]")
    >>> rows = TensorType.parse("f32[8, 8]")
    >>> masked_rows(Call("masked_scatter", (), (), (x, mask, rows), (x,)))
    '(b:4 o0^:1) ? ?, (b:4 o0^:1) ? ?, (b:4 o1^:2) ? -> (b:4 o0^:1) ? ?'
    """
    x, mask, source = call.operands
    among, rows = _of_one_batch(x, mask, source)
    return arrow([among, among, rows], [among])


def masked_rows_backward(call: Call) -> str:
    """Share the batch as ``masked_rows`` does."""
    grad, mask = call.operands
    (source,) = call.results
    assert source is not None
    among, rows = _of_one_batch(grad, mask, source)
    return arrow([among, among], [rows])


def _of_one_batch(
    x: TensorType, mask: TensorType, source: TensorType
) -> tuple[str, str]:
    """Name the dims of what is written to and of what is written."""
    if not x.ndim or mask.shape[:1] != x.shape[:1] or mask.ndim != x.ndim:
        return "?", "?"  # of another batch
    if not source.ndim:
        return "?", "?"
    num_samples = gcd(x.shape[0], source.shape[0])
    if num_samples < 2:
        return "?", "?"
    texts = [
        " ".join(
            [f"(b:{num_samples} o{i}^:{t.shape[0] // num_samples})"]
            + ["?"] * (t.ndim - 1)
        )
        for i, t in enumerate((x, source))
    ]
    return texts[0], texts[1]
