"""Indexing taken apart, so that the indexed dim can be split; see ``expand.py``.

Every rank looks up, or puts, the rows that it holds: ``position_ops.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules import position_ops as position_ops  # defines the ops
from partita.compiler.rules.rule import Call
from partita.compiler.rules.shapes import ints

aten = torch.ops.aten
partita = torch.ops.partita


def _make(like: fx.Proxy, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call an op that takes no tensor, in the graph that ``like`` is of."""
    kwargs = {"device": torch.device("cpu"), **kwargs}
    return like.tracer.create_proxy("call_function", op, args, kwargs)


def arange(like: fx.Proxy, *bounds: int) -> Any:
    """Return which rows there are, in the graph that ``like`` is of."""
    op = aten.arange.default if len(bounds) == 1 else aten.arange.start_step
    return _make(like, op, *bounds, dtype=torch.int64)


def _zeros(like: fx.Proxy, type_: TensorType | None) -> Any:
    assert type_ is not None
    shape = list(type_.shape)
    return _make(like, aten.full.default, shape, 0, dtype=type_.dtype)


# Embeddings


def embedding(call: Call, weight: Any, ids: Any) -> tuple[Any, ...]:
    """Take apart ``embedding(weight, ids)``."""
    size = call.operands[0].shape[0]
    rows = arange(weight, size)
    return (partita.index.default(weight, [rows], [0], [size], [ids]),)


def embedding_backward(call: Call, grad: Any, ids: Any) -> tuple[Any, ...]:
    """Take apart ``embedding_dense_backward(grad, ids, num, padding, scale)``."""
    size, padding = call.args[2], call.args[3]
    if isinstance(padding, int) and padding >= 0:
        padded = aten.eq.Scalar(ids, padding)
        shape = [*call.operands[1].shape, 1]
        padded = aten.reshape.default(padded, shape)
        grad = aten.masked_fill.Scalar(grad, padded, 0)
    rows, zeros = arange(grad, int(size)), _zeros(grad, call.results[0])  # type: ignore[call-overload]
    return (partita.index_put.default(zeros, [rows], [0], [size], [ids], grad, True),)


# Indices


def _indexed(call: Call, at: Any) -> tuple[list[int], list[int]]:
    dims = [dim for dim, index in enumerate(at) if index is not None]
    return dims, [call.operands[0].shape[dim] for dim in dims]


def index(call: Call, x: Any, *indices: Any) -> tuple[Any, ...]:
    """Take apart ``index(x, indices)``."""
    dims, sizes = _indexed(call, call.args[1])
    rows = [arange(x, size) for size in sizes]
    return (partita.index.default(x, rows, dims, sizes, list(indices)),)


def index_put(call: Call, x: Any, *rest: Any) -> tuple[Any, ...]:
    """Take apart ``index_put(x, indices, values, accumulate)``."""
    *indices, values = rest
    dims, sizes = _indexed(call, call.args[1])
    rows = [arange(x, size) for size in sizes]
    accumulate = bool(call.arg(3, False))
    return (
        partita.index_put.default(x, rows, dims, sizes, indices, values, accumulate),
    )


def index_select(call: Call, x: Any, ids: Any) -> tuple[Any, ...]:
    """Take apart ``index_select(x, dim, ids)``."""
    (dim,) = ints(call.args[1])
    dim %= call.operands[0].ndim
    size = call.operands[0].shape[dim]
    return (partita.index.default(x, [arange(x, size)], [dim], [size], [ids]),)


def gather(call: Call, x: Any, ids: Any) -> tuple[Any, ...]:
    """Take apart ``gather(x, dim, ids)``."""
    dim, size = _dim_of(call)
    return (partita.gather.default(x, arange(x, size), dim, size, ids),)


def scatter(call: Call, x: Any, ids: Any, source: Any) -> tuple[Any, ...]:
    """Take apart ``scatter(x, dim, ids, source)``."""
    dim, size = _dim_of(call)
    rows = arange(x, size)
    return (partita.scatter.default(x, rows, dim, size, ids, source, False),)


def scatter_value(call: Call, x: Any, ids: Any) -> tuple[Any, ...]:
    """Take apart ``scatter(x, dim, ids, number)``."""
    shape, dtype = list(call.operands[1].shape), call.operands[0].dtype
    filled = _make(x, aten.full.default, shape, call.args[3], dtype=dtype)
    return scatter(call, x, ids, filled)


def scatter_add(call: Call, x: Any, ids: Any, source: Any) -> tuple[Any, ...]:
    """Take apart ``scatter_add(x, dim, ids, source)``."""
    dim, size = _dim_of(call)
    rows = arange(x, size)
    return (partita.scatter.default(x, rows, dim, size, ids, source, True),)


def _dim_of(call: Call) -> tuple[int, int]:
    (dim,) = ints(call.args[1])
    dim %= call.operands[0].ndim
    return dim, call.operands[0].shape[dim]


# Triangles


def _diagonal(call: Call, x: Any) -> tuple[Any, Any]:
    """Return the rows of a matrix and its columns, the diagonal being where equal."""
    num_rows, num_columns = call.operands[0].shape[-2:]
    diagonal = int(call.arg(1, 0))  # type: ignore[call-overload]
    rows = aten.reshape.default(arange(x, num_rows), [num_rows, 1])
    return rows, arange(x, -diagonal, num_columns - diagonal, 1)


def tril(call: Call, x: Any) -> tuple[Any, ...]:
    """Take apart ``tril(x, diagonal)``."""
    rows, columns = _diagonal(call, x)
    return (aten.masked_fill.Scalar(x, aten.lt.Tensor(rows, columns), 0),)


def triu(call: Call, x: Any) -> tuple[Any, ...]:
    """Take apart ``triu(x, diagonal)``."""
    rows, columns = _diagonal(call, x)
    return (aten.masked_fill.Scalar(x, aten.gt.Tensor(rows, columns), 0),)


# Slices


def slice_(call: Call, x: Any) -> tuple[Any, ...]:
    """Take apart ``slice(x, dim, start, stop, step)`` of a dim that it cuts."""
    dim, size = _dim_of(call)
    start, stop, step = (int(n) for n in call.args[2:5])  # type: ignore[call-overload]
    ids = arange(x, start, stop, step)
    return (partita.index.default(x, [arange(x, size)], [dim], [size], [ids]),)


def slice_backward(call: Call, grad: Any) -> tuple[Any, ...]:
    """Take apart ``slice_backward(grad, sizes, dim, start, stop, step)``."""
    (dim,) = ints(call.args[2])
    result = call.results[0]
    assert result is not None
    size = result.shape[dim]
    start, stop, step = (int(n) for n in call.args[3:6])  # type: ignore[call-overload]
    ids = arange(grad, *slice(start, stop, step).indices(size))
    zeros, rows = _zeros(grad, result), arange(grad, size)
    put = partita.index_put.default(zeros, [rows], [dim], [size], [ids], grad, False)
    return (put,)


def select(call: Call, x: Any) -> tuple[Any, ...]:
    """Take apart ``select(x, dim, at)``."""
    dim, size = _dim_of(call)
    ids = _make(x, aten.full.default, [], call.args[2], dtype=torch.int64)
    return (partita.index.default(x, [arange(x, size)], [dim], [size], [ids]),)


def select_backward(call: Call, grad: Any) -> tuple[Any, ...]:
    """Take apart ``select_backward(grad, sizes, dim, at)``."""
    (dim,) = ints(call.args[2])
    result = call.results[0]
    assert result is not None
    dim %= result.ndim
    size = result.shape[dim]
    ids = _make(grad, aten.full.default, [], call.args[3], dtype=torch.int64)
    zeros, rows = _zeros(grad, result), arange(grad, size)
    put = partita.index_put.default(zeros, [rows], [dim], [size], [ids], grad, False)
    return (put,)


# Attention


def _causal(call: Call, position: int, like: Any) -> Any:
    """Return which keys a query attends to, as a mask that says it by position."""
    queries, keys = (
        call.operands[position].shape[2],
        call.operands[position + 1].shape[2],
    )
    rows = aten.reshape.default(arange(like, queries), [queries, 1])
    return aten.ge.Tensor(rows, arange(like, keys))


def attention(call: Call, query: Any, key: Any, value: Any) -> tuple[Any, ...]:
    """Take apart causal ``attention(query, key, value, mask, causal, scale)``."""
    mask = _causal(call, 0, query)
    out = partita.attention.default(query, key, value, mask, False, call.args[5])
    return out[0], out[1]


def attention_backward(
    call: Call, grad: Any, query: Any, key: Any, value: Any, out: Any, lse: Any
) -> tuple[Any, ...]:
    """Take apart causal ``attention_backward``, whose queries come second."""
    mask = _causal(call, 1, query)
    found = partita.attention_backward.default(
        grad, query, key, value, mask, out, lse, False, call.args[8]
    )
    return found[0], found[1], found[2]
