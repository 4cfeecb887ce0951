"""Dims of ops that cut pieces off a dim, where each part has its share of every piece.

So are halves of a batch, as of pairs of texts or images that one model is run on: a
microbatch has a part of the first half and the same part of the second.
"""

from __future__ import annotations

from collections.abc import Sequence

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
