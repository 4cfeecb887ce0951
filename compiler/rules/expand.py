"""Ops taken apart, so that the dims they reduce or index can be split.

Each function computes, by ops that have rows of their own, what its op returns; it is
traced on logical tensors. ``n!`` in the op's row marks the factors it is for: along
them the parts reduce to partial maxima and sums, and look rows up by position.

The numbers in here are logical counts: a mean divides by all there is, not by a shard.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules import norm_ops as norm_ops  # defines the ops
from partita.compiler.rules.rule import Call
from partita.compiler.rules.shapes import ints

aten = torch.ops.aten
own = torch.ops.partita

_HALF = (torch.float16, torch.bfloat16)


def _widened(x: Any, type_: TensorType) -> Any:
    """Return ``x`` in the precision in which kernels reduce it."""
    if type_.dtype in _HALF:
        return aten._to_copy.default(x, dtype=torch.float32)
    return x


def _narrowed(x: Any, worked_in: TensorType, wanted: torch.dtype) -> Any:
    dtype = torch.float32 if worked_in.dtype in _HALF else worked_in.dtype
    return x if dtype == wanted else aten._to_copy.default(x, dtype=wanted)


def _result(call: Call, index: int = 0) -> TensorType:
    type_ = call.results[index]
    assert type_ is not None
    return type_


# Softmax


def softmax(call: Call, x: Any) -> tuple[Any, ...]:
    """Take apart ``_softmax(x, dim, half_to_float)``."""
    dims = ints(call.args[1])
    wide = _widened(x, call.operands[0])
    powers = aten.exp.default(
        aten.sub.Tensor(wide, aten.amax.default(wide, dims, True))
    )
    out = aten.div.Tensor(powers, aten.sum.dim_IntList(powers, dims, True))
    return (_narrowed(out, call.operands[0], _result(call).dtype),)


def safe_softmax(call: Call, x: Any) -> tuple[Any, ...]:
    """Take apart ``_safe_softmax(x, dim, dtype)``: rows of -inf become zeros."""
    dims = ints(call.args[1])
    wide = _widened(x, call.operands[0])
    top = aten.amax.default(wide, dims, True)
    masked = aten.eq.Scalar(top, float("-inf"))
    top = aten.masked_fill.Scalar(top, masked, 0.0)
    powers = aten.exp.default(aten.sub.Tensor(wide, top))
    total = aten.masked_fill.Scalar(
        aten.sum.dim_IntList(powers, dims, True), masked, 1.0
    )
    out = aten.div.Tensor(powers, total)
    return (_narrowed(out, call.operands[0], _result(call).dtype),)


def log_softmax(call: Call, x: Any) -> tuple[Any, ...]:
    """Take apart ``_log_softmax(x, dim, half_to_float)``."""
    dims = ints(call.args[1])
    wide = _widened(x, call.operands[0])
    shifted = aten.sub.Tensor(wide, aten.amax.default(wide, dims, True))
    total = aten.sum.dim_IntList(aten.exp.default(shifted), dims, True)
    out = aten.sub.Tensor(shifted, aten.log.default(total))
    return (_narrowed(out, call.operands[0], _result(call).dtype),)


def softmax_backward(call: Call, grad: Any, out: Any) -> tuple[Any, ...]:
    """Take apart ``_softmax_backward_data(grad, out, dim, dtype)``."""
    grad, out = _widened(grad, call.operands[0]), _widened(out, call.operands[1])
    product = aten.mul.Tensor(grad, out)
    total = aten.sum.dim_IntList(product, ints(call.args[2]), True)
    found = aten.sub.Tensor(product, aten.mul.Tensor(out, total))
    return (_narrowed(found, call.operands[0], _result(call).dtype),)


def log_softmax_backward(call: Call, grad: Any, out: Any) -> tuple[Any, ...]:
    """Take apart ``_log_softmax_backward_data(grad, out, dim, dtype)``."""
    grad, out = _widened(grad, call.operands[0]), _widened(out, call.operands[1])
    total = aten.sum.dim_IntList(grad, ints(call.args[2]), True)
    found = aten.sub.Tensor(grad, aten.mul.Tensor(aten.exp.default(out), total))
    return (_narrowed(found, call.operands[0], _result(call).dtype),)


# Norms


def _moments(x: Any, dims: list[int], count: int) -> tuple[Any, Any]:
    """Return what is left of ``x`` without its mean, and the mean."""
    mean = aten.div.Scalar(aten.sum.dim_IntList(x, dims, True), count)
    return aten.sub.Tensor(x, mean), mean


def layer_norm(call: Call, x: Any, *weights: Any) -> tuple[Any, ...]:
    """Take apart ``native_layer_norm(x, shape, weight, bias, eps)``."""
    sizes = ints(call.args[1])
    type_ = call.operands[0]
    dims = list(range(type_.ndim - len(sizes), type_.ndim))
    count = prod(sizes)
    centred, mean = _moments(_widened(x, type_), dims, count)
    squares = aten.sum.dim_IntList(aten.mul.Tensor(centred, centred), dims, True)
    variance = aten.add.Scalar(aten.div.Scalar(squares, count), call.args[4])
    deviation = aten.rsqrt.default(variance)
    out = aten.mul.Tensor(centred, deviation)
    given = iter(weights)
    if call.args[2] is not None:
        out = aten.mul.Tensor(out, next(given))
    if call.args[3] is not None:
        out = aten.add.Tensor(out, next(given))
    out = _narrowed(out, type_, type_.dtype)
    statistics = [
        _narrowed(s, type_, _result(call, 1).dtype) for s in (mean, deviation)
    ]
    return (out, *statistics)


def layer_norm_backward(call: Call, grad: Any, x: Any, *rest: Any) -> tuple[Any, ...]:
    """Take apart ``native_layer_norm_backward``.

    Its arguments are (grad, x, shape, mean, deviation, weight, bias, mask).
    """
    mean, deviation, *weights = rest
    type_ = call.operands[1]
    sizes = ints(call.args[2])
    leading = list(range(type_.ndim - len(sizes)))
    dims = list(range(len(leading), type_.ndim))
    count = prod(sizes)
    grad, wide = _widened(grad, type_), _widened(x, type_)
    normal = aten.mul.Tensor(aten.sub.Tensor(wide, mean), deviation)
    mask: Any = call.args[7]
    found: list[Any] = [None, None, None]
    if mask[0]:
        inner = grad if call.args[5] is None else aten.mul.Tensor(grad, weights[0])
        first = aten.div.Scalar(aten.sum.dim_IntList(inner, dims, True), count)
        product = aten.mul.Tensor(inner, normal)
        second = aten.div.Scalar(aten.sum.dim_IntList(product, dims, True), count)
        rest = aten.sub.Tensor(inner, first)
        rest = aten.sub.Tensor(rest, aten.mul.Tensor(normal, second))
        found[0] = _narrowed(aten.mul.Tensor(rest, deviation), type_, type_.dtype)
    for index, summed in ((1, aten.mul.Tensor(grad, normal)), (2, grad)):
        if mask[index] and call.results[index] is not None:
            total = aten.sum.dim_IntList(summed, leading) if leading else summed
            found[index] = _narrowed(total, type_, _result(call, index).dtype)
    return tuple(found)


def _channels(ndim: int) -> list[int]:
    """Return the dims that a batch norm reduces."""
    return [dim for dim in range(ndim) if dim != 1]


def batch_norm(call: Call, x: Any, *rest: Any) -> tuple[Any, ...]:
    """Take apart ``_native_batch_norm_legit_functional`` in training.

    Its arguments are (x, weight, bias, running mean, running variance, training,
    momentum, eps); the running variance is unbiased.
    """
    type_ = call.operands[0]
    ndim, size = type_.ndim, type_.shape[1]
    dims = _channels(ndim)
    count = prod(type_.shape[dim] for dim in dims)
    given = iter(rest)
    weight, bias, running_mean, running_var = (
        None if arg is None else next(given) for arg in call.args[1:5]
    )
    momentum: Any = call.args[6]
    x = _widened(x, type_)
    mean = aten.div.Scalar(aten.sum.dim_IntList(x, dims), count)
    variance = aten.div.Scalar(own.batch_norm_deviations.default(x, mean), count)
    deviation = aten.rsqrt.default(aten.add.Scalar(variance, call.args[7]))
    scale = deviation if weight is None else aten.mul.Tensor(deviation, weight)
    if bias is None:
        shift = aten.mul.Tensor(aten.neg.default(mean), scale)
    else:
        shift = aten.addcmul.default(bias, mean, scale, value=-1)
    shape = [1, size, *[1] * (ndim - 2)]
    scale, shift = (aten.reshape.default(s, shape) for s in (scale, shift))
    out = aten.addcmul.default(shift, x, scale)
    results = [_narrowed(out, type_, type_.dtype)]
    for index, statistic in ((1, mean), (2, deviation)):
        results.append(_narrowed(statistic, type_, _result(call, index).dtype))
    unbiased = aten.mul.Scalar(variance, count / max(count - 1, 1))
    for at, old, new in ((3, running_mean, mean), (4, running_var, unbiased)):
        kept: Any = call.args[at]
        new = _narrowed(new, type_, kept.dtype)
        results.append(aten.lerp.Scalar(old, new, momentum))
    return tuple(results)


def batch_norm_backward(call: Call, grad: Any, x: Any, *rest: Any) -> tuple[Any, ...]:
    """Take apart ``native_batch_norm_backward`` in training.

    Its arguments are (grad, x, weight, running mean, running variance, saved mean,
    saved deviation, training, eps, mask).
    """
    type_ = call.operands[1]
    ndim = type_.ndim
    dims = _channels(ndim)
    count = prod(type_.shape[dim] for dim in dims)
    given = iter(rest)
    weight, _, _, mean, deviation = (
        None if arg is None else next(given) for arg in call.args[2:7]
    )
    grad, x = _widened(grad, type_), _widened(x, type_)
    mean, deviation = (
        _widened(*pair)
        for pair in zip((mean, deviation), call.operands[-2:], strict=True)
    )
    products, sums = own.batch_norm_products.default(grad, x, mean, deviation)
    scale = deviation if weight is None else aten.mul.Tensor(deviation, weight)
    slope = aten.div.Scalar(aten.mul.Tensor(products, deviation), -count)
    shift = aten.mul.Tensor(aten.div.Scalar(sums, -count), scale)
    shape = [1, type_.shape[1], *[1] * (ndim - 2)]
    mean, scale, slope, shift = (
        aten.reshape.default(s, shape) for s in (mean, scale, slope, shift)
    )
    rest_of = aten.addcmul.default(grad, aten.sub.Tensor(x, mean), slope)
    found = aten.addcmul.default(shift, rest_of, scale)
    # As views they leave in the placement in which they are used here.
    leaving = [aten.reshape.default(s, [type_.shape[1]]) for s in (products, sums)]
    return tuple(
        None if made is None else _narrowed(x, type_, made.dtype)
        for x, made in zip((found, *leaving), call.results, strict=True)
    )
