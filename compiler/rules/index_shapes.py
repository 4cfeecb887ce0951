"""Dims of ops that look rows up, or put them; ``shapes.py`` has the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import Call
from partita.compiler.rules.shapes import arrow, dim_names, ints, whole

# Indices


def _sharing(call: Call, dim: int) -> list[str]:
    """Name the dims that all operands share, whole where one is larger; ``dim`` too."""
    sizes = zip(*(tensor.shape for tensor in call.operands), strict=True)
    names = dim_names(call.operands[0].ndim)
    names = [
        name if len(set(found)) == 1 else "?"
        for name, found in zip(names, sizes, strict=True)
    ]
    names[dim] = "?"
    return names


def _has_scalar(call: Call) -> bool:
    # Tensors without dims go together with those of one dim.
    return any(not tensor.ndim for tensor in call.operands)


def gather(call: Call) -> str:
    """Return dims of which the gathered one is whole in the source alone."""
    if _has_scalar(call):
        return whole(call)
    (dim,) = ints(call.args[1])
    source, index = _sharing(call, dim), _sharing(call, dim)
    source[dim], index[dim] = "n!", "i"
    return arrow([" ".join(source), " ".join(index)], [" ".join(index)])


def scatter(call: Call) -> str:
    """Return dims of which the scattered one is put into row by row."""
    if not call.operands[0].ndim:
        return whole(call)
    (dim,) = ints(call.args[1])
    names, found = _sharing(call, dim), _sharing(call, dim)
    names[dim] = "n!"
    texts = [" ".join(names), *[" ".join(found)] * (len(call.operands) - 1)]
    return arrow(texts, [" ".join(names)])


def scatter_add(call: Call) -> str:
    """Return dims of ``scatter``; what the parts of the index scatter adds up."""
    index, source = call.operands[1:]
    if _has_scalar(call):
        return whole(call)
    (dim,) = ints(call.args[1])
    names, found = _sharing(call, dim), _sharing(call, dim)
    names[dim] = "n!"
    found[dim] = "i" if index.shape[dim] == source.shape[dim] else "?"
    return arrow([" ".join(names), *[" ".join(found)] * 2], [" ".join(names)])


def index_select(call: Call) -> str:
    """Return dims of which one is replaced by that of the index."""
    names, out = dim_names(call.operands[0].ndim), dim_names(call.operands[0].ndim)
    for dim in ints(call.args[1]) if names else ():
        names[dim], out[dim] = "n!", "i"
    index = "i" if call.operands[1].ndim and names else "?"
    return arrow([" ".join(names) or "?", index], [" ".join(out)])


def _indexing(call: Call, at: Any) -> tuple[list[str], list[str], list[str]] | None:
    """Name the dims of the source, of the indices, and of what is indexed.

    ``None`` for boolean masks, which count what they select.
    """
    where = [dim for dim, index in enumerate(at) if index is not None]
    indices = [index for index in at if index is not None]
    if not where or any(index.dtype.itemsize == 1 for index in indices):
        return None
    names = dim_names(call.operands[0].ndim)
    ndim = max(index.ndim for index in indices)
    ids = [f"i{dim}" for dim in range(ndim)]
    # Dims that were indexed stand in the place of the first, or in front of all others
    # where they were not neighbours.
    first = where[0] if where == list(range(where[0], where[-1] + 1)) else 0
    others = [name for dim, name in enumerate(names) if dim not in where]
    found = [*others[:first], *ids, *others[first:]]
    for dim in where:
        names[dim] = f"{names[dim]}!"
    texts = [" ".join(ids[ndim - index.ndim :]) or "?" for index in indices]
    return names, texts, found


def index(call: Call) -> str:
    """Return dims of which the indexed ones become those of the indices."""
    named = _indexing(call, call.args[1])
    if named is None:
        return whole(call)
    names, indices, found = named
    return arrow([" ".join(names), *indices], [" ".join(found)])


def index_put(call: Call) -> str:
    """Return dims of which the indexed ones are whole, or add up if accumulated."""
    named = _indexing(call, call.args[1])
    if named is None:
        return whole(call)
    names, indices, found = named
    # What is accumulated in booleans is no sum.
    if not call.arg(3, False) or call.operands[0].dtype == torch.bool:
        indices = ["?"] * len(indices)
        found = ["?" if name.startswith("i") else name for name in found]
    values = call.operands[-1]
    stated = found[len(found) - values.ndim :]
    if _broadcasts_along_indices(found, stated, values, call.operands[1:-1]):
        return whole(call)
    return arrow(
        [" ".join(names), *indices, " ".join(stated) or "?"], [" ".join(names)]
    )


def _broadcasts_along_indices(
    found: list[str],
    stated: list[str],
    values: TensorType,
    indices: Sequence[TensorType],
) -> bool:
    shape = torch.broadcast_shapes(*(index.shape for index in indices))
    long = {f"i{dim}" for dim, size in enumerate(shape) if size > 1}
    wide = {name for name, size in zip(stated, values.shape, strict=True) if size > 1}
    return any(name in long and name not in wide for name in found)


def index_put_sum(call: Call) -> str:
    """Return the source plus the values, whatever stands between them."""
    return f"0+{len(call.operands) - 1}"


# Rows by position


def _positioned(call: Call) -> tuple[list[str], list[str], list[str], list[str]]:
    """Name the dims of a source, its positions, the indices, and what they index."""
    dims = ints(call.args[2])
    at: list[Any] = [None] * call.operands[0].ndim
    indices = call.operands[1 + len(dims) : 1 + 2 * len(dims)]
    for dim, index in zip(dims, indices, strict=True):
        at[dim] = index
    named = _indexing(call, at)
    assert named is not None
    names, texts, found = named
    names = [name.rstrip("!") for name in names]
    return names, [names[dim] for dim in dims], texts, found


def index_rows(call: Call) -> str:
    """Return dims of which the indexed ones add up: a row is on one rank alone."""
    names, rows, indices, found = _positioned(call)
    return arrow([" ".join(names), *rows, *indices], [" ".join(found)])


def index_put_rows(call: Call) -> str:
    """Return dims of which the indexed ones keep their rows."""
    names, rows, indices, found = _positioned(call)
    if not call.args[6]:
        indices = ["?"] * len(indices)
        found = ["?" if name.startswith("i") else name for name in found]
    values = call.operands[-1]
    stated = found[len(found) - values.ndim :]
    given = call.operands[1 + len(rows) : -1]
    if _broadcasts_along_indices(found, stated, values, given):
        indices = ["?"] * len(indices)
        stated = ["?" if name.startswith("i") else name for name in stated]
    operands = [" ".join(names), *rows, *indices, " ".join(stated) or "?"]
    return arrow(operands, [" ".join(names)])


def gather_rows(call: Call) -> str:
    """Return the dims of ``gather``, whose gathered one adds up over its rows."""
    (dim,) = ints(call.args[2])
    x, _, index = call.operands
    names = dim_names(x.ndim)
    sizes = zip(names, x.shape, index.shape, strict=True)
    names = [name if a == b else "?" for name, a, b in sizes]
    source, found = list(names), list(names)
    source[dim], found[dim] = "n", "i"
    return arrow([" ".join(source), "n", " ".join(found)], [" ".join(found)])


def scatter_rows(call: Call) -> str:
    """Return the dims of ``scatter``, whose scattered one keeps its rows.

    What is added may come in parts.
    """
    (dim,) = ints(call.args[2])
    x, _, index, source = call.operands
    sizes = zip(dim_names(x.ndim), x.shape, index.shape, source.shape, strict=True)
    names = [name if len({a, b, c}) == 1 else "?" for name, a, b, c in sizes]
    found = list(names)
    parts = bool(call.args[6]) and index.shape[dim] == source.shape[dim]
    names[dim], found[dim] = "n", "i" if parts else "?"
    return arrow([" ".join(names), "n", *[" ".join(found)] * 2], [" ".join(names)])
