"""Dims of ops on matrices and images: diagonals, windows, pixels, samples."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from partita.compiler.rules import index_shapes
from partita.compiler.rules.rule import Call, Text
from partita.compiler.rules.shapes import arrow, dim_names, ints, whole

# Matrices


def diagonal(call: Call) -> str:
    """Return dims of which two are replaced by one, their diagonal, at the end."""
    names = dim_names(call.operands[0].ndim)
    others = _without_pair(names, call.arg(2, 0), call.arg(3, 1))
    return arrow([" ".join(names)], [" ".join([*(names[d] for d in others), "?"])])


def diagonal_backward(call: Call) -> str:
    """Return the dims of ``diagonal`` the other way round."""
    (result,) = call.results
    assert result is not None
    names = dim_names(result.ndim)
    others = _without_pair(names, call.args[3], call.args[4])
    return arrow([" ".join([*(names[d] for d in others), "?"])], [" ".join(names)])


def diagonal_scatter(call: Call) -> str:
    """Return dims of which two are whole, and what replaces their diagonal."""
    names = dim_names(call.operands[0].ndim)
    others = _without_pair(names, call.arg(3, 0), call.arg(4, 1))
    every, diagonals = " ".join(names), " ".join([*(names[d] for d in others), "?"])
    return arrow([every, diagonals], [every])


def _without_pair(names: list[str], first: object, second: object) -> list[int]:
    """Make two dims whole in ``names``; return the places of the others."""
    assert isinstance(first, int)
    assert isinstance(second, int)
    pair = {first % len(names), second % len(names)}
    for dim in pair:
        names[dim] = "?"
    return [dim for dim in range(len(names)) if dim not in pair]


def addbmm(call: Call) -> str:
    """Return products that add up over the batch, plus a bias of up to two dims."""
    bias = ("m", "n")[2 - call.operands[0].ndim :]
    return f"{' '.join(bias) or '?'}, b m k, b k n -> m n"


# Pieces and indices


def unfold(call: Call) -> str:
    """Return dims of which one becomes windows, whose elements come last."""
    names = dim_names(call.operands[0].ndim)
    for dim in ints(call.args[1]) if names else ():
        names[dim] = "?"
    return arrow([" ".join(names) or "?"], [" ".join([*names, "?"])])


def unfold_backward(call: Call) -> str:
    """Return the dims of ``unfold`` the other way round."""
    names = dim_names(call.operands[0].ndim - 1)
    for dim in ints(call.args[2]) if names else ():
        names[dim] = "?"
    return arrow([" ".join([*names, "?"])], [" ".join(names) or "?"])


def chosen(position: int) -> Text:
    """Take away the dim that argument ``position`` names (none named: the last)."""

    def dims(call: Call) -> str:
        names = dim_names(call.operands[0].ndim)
        if not names:
            return arrow(["?"], [""] * len(call.results))
        out = list(names)
        for dim in ints(call.arg(position, -1)):
            names[dim] = "?"
            out[dim] = "1" if call.arg(position + 1, False) else ""
        result = " ".join(name for name in out if name)
        return arrow([" ".join(names)], [result] * len(call.results))

    return dims


def index_add(call: Call) -> str:
    """Return dims of which the parts of the indexed one add up."""
    x, index, source = call.operands
    if not (x.ndim and index.ndim and source.ndim):
        return "?, ?, ? -> ?"
    names, found = dim_names(x.ndim), dim_names(x.ndim)
    added = "?" if x.dtype == torch.bool else "i"  # of booleans there is no sum
    for dim in ints(call.args[1]):
        names[dim], found[dim] = "?", added
    text = " ".join(names)
    return arrow([text, added, " ".join(found)], [text])


def index_put(call: Call) -> str:
    """Return the dims of plain indexing; those that a mask chooses from as well.

    A mask of the first dims is cut with them, unless the values state one by one what
    goes where it is true.
    """
    x, mask, *_ = call.operands
    at: Any = call.args[1]
    if len(call.operands) != 3 or at[0] is None or mask.dtype != torch.bool:
        return index_shapes.index_put(call)
    values = call.operands[2]
    names = dim_names(x.ndim)
    rest = names[mask.ndim :]
    if values.ndim > len(rest):
        names[: mask.ndim] = "?" * mask.ndim
        stated = ["?", *rest]
    else:
        stated = rest[len(rest) - values.ndim :]
    masked, text = " ".join(names[: mask.ndim]), " ".join(names)
    return arrow([text, masked, " ".join(stated) or "?"], [text])


def masked_scatter(call: Call) -> str:
    """Return all dims where the mask is one place, which says: all of them, or none.

    Else which element a place gets depends on how many places are before it. Of its
    backward, the gradient is in the place of what is written to.
    """
    x, mask, *rest = call.operands
    tensors = (*rest, *call.results)
    if mask.numel != 1 or any(t is None or t.shape != x.shape for t in tensors):
        return whole(call)
    return arrow(["*", "?", *["*"] * len(rest)], ["*"])


def scatter_reduce(call: Call) -> str:
    """Return the dims of ``scatter``; parts of the index add up to a sum."""
    keeps = dict(call.kwargs).get("include_self", True)
    is_sum = call.arg(4) == "sum" and keeps
    if is_sum and call.operands[0].dtype != torch.bool:
        return index_shapes.scatter_add(call)
    return index_shapes.scatter(call)


def scatter_reduce_sum(call: Call) -> str:
    """Return the source plus what is scattered, unless an extreme joins them."""
    return "0+2" if call.arg(4) in ("sum", "mean") else ""


def embedding_bag(call: Call) -> str:
    """Return the dim of the embedding; what is said of bags holds for all of it."""
    operands = ["? d", *["?"] * (len(call.operands) - 1)]
    others = [
        "? d" if t is not None and t.ndim == 2 else "? =d" for t in call.results[1:]
    ]
    return arrow(operands, ["? d", *others])


def embedding_bag_backward(call: Call) -> str:
    """Return the dim of the embedding, and that of the ids, whose parts add up.

    Where ids are counted, or bags have a maximum, all of them are needed at once.
    """
    is_counted, mode = call.args[7], call.args[8]
    has_bags = call.operands[3].shape == call.operands[1].shape
    ids = "i" if has_bags and not is_counted and mode != _MAX_OF_BAG else "?"
    places = "? d" if call.operands[5].ndim == 2 else "?"
    weights = [ids] * (len(call.operands) - 6)
    return arrow(["? d", ids, "?", ids, "?", places, *weights], ["? d"])


_MAX_OF_BAG = 2  # of the modes sum, mean, max


# Images


def columns_to_image(call: Call) -> str:
    """Return batch and channels; the window's elements come inside of a channel."""
    window = prod(ints(call.args[2]))
    batch = "b " * (call.operands[0].ndim - 2)
    return f"{batch}(c k^:{window}) ? -> {batch}c ? ?"


def image_to_columns(call: Call) -> str:
    """Return the dims of ``columns_to_image`` the other way round."""
    window = prod(ints(call.args[1]))
    batch = "b " * (call.operands[0].ndim - 3)
    return f"{batch}c ? ? -> {batch}(c k^:{window}) ?"


def pixel_shuffle(call: Call) -> str:
    """Return channels, rows and columns, of which each row becomes several."""
    (factor,) = ints(call.args[1])
    rows, columns = f"(h i^:{factor})", f"(w j^:{factor})"
    return f"* (c k^:{factor**2}) h w -> * c {rows} {columns}"


def pixel_unshuffle(call: Call) -> str:
    """Return the dims of ``pixel_shuffle`` the other way round."""
    left, right = pixel_shuffle(call).split(" -> ")
    return f"{right} -> {left}"


def instance_norm(call: Call) -> str:
    """Return the channel; statistics are taken over all other dims."""
    x = " ".join(["?", "c", *["?"] * (call.operands[0].ndim - 2)])
    return arrow([x, *["c"] * (len(call.operands) - 1)], [x, "c", "c"])


def _on_space(call: Call, first: str) -> str:
    return " ".join([first, *(f"y{d}" for d in range(call.operands[0].ndim - 2))])


def sample_grid(call: Call) -> str:
    """Return batch, channels and the dims of the grid."""
    whole = " ".join(["?"] * (call.operands[0].ndim - 2))
    grid, out = _on_space(call, "n"), _on_space(call, "n c")
    return f"n c {whole}, {grid} ? -> {out}"


def sample_grid_backward(call: Call) -> str:
    """Return the dims of ``sample_grid``, its input's and grid's gradients."""
    whole = " ".join(["?"] * (call.operands[0].ndim - 2))
    grid, out = f"{_on_space(call, 'n')} ?", _on_space(call, "n c")
    return f"{out}, n c {whole}, {grid} -> n c {whole}, {grid}"
