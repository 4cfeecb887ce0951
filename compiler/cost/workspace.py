"""What kernels allocate for themselves while they run, where that is much.

Found by running the ops of many models under torch's profiler (torch 2.13, CPU): almost
all of them allocate their results and nothing else. Those that do not are rows here,
and tests run the kernels against them. On a CPU that is any op on single elements
whose operands are of several dtypes: they are cast to one before (TensorIterator.cpp).
What does not grow with the tensors is left out. Where it depends on values, the rows of
each group of a grouped product, as many are counted for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial, reduce
from itertools import groupby
from math import prod

import torch

from partita.compiler.capture.random_numbers import held_bytes
from partita.compiler.cost.convolution_blocks import (
    convolution_bytes,
    image_gradient_bytes,
    weight_gradient_bytes,
)
from partita.compiler.cost.layouts import is_by_channels, is_in_order
from partita.compiler.cost.local_call import LocalCall
from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.plan.printed_call import find_op


def has_workspace(op: str) -> bool:
    """Whether calls of an op may hold more than operands and results."""
    return op in _ROWS or is_pointwise(op)


@lru_cache
def is_pointwise(op: str) -> bool:
    """Whether torch says that an op works on single elements.

    >>> is_pointwise("aten.add.Tensor"), is_pointwise("aten.mm.default")
    (True, False)
    """
    return torch.Tag.pointwise in getattr(find_op(op), "tags", ())


def workspace_bytes(call: LocalCall) -> int:
    """Return the most that a kernel holds beyond operands and results."""
    row = _ROWS.get(call.op)
    if row is None and is_pointwise(call.op):
        row = _cast
    return 0 if row is None else max(row(call), 0)


def _cast(call: LocalCall) -> int:
    """Count operands of an op on single elements that are cast to one dtype.

    That is the result's, or, where this is an answer, what the operands have in common,
    numbers that they are compared to among them. Single numbers are not counted; a GPU
    casts inside of its kernel.
    """
    types = [type_ for type_ in call.types if type_.shape]
    if call.device != "cpu" or not types or len(call.results) != 1:
        return 0
    to = call.results[0].dtype
    if to == torch.bool:
        to = reduce(torch.promote_types, (type_.dtype for type_ in types))
        for value in call.arguments:
            if isinstance(value, bool | int | float):
                to = torch.result_type(torch.empty(1, dtype=to, device="meta"), value)
    return _cast_to(to, types)


def _infinite(call: LocalCall) -> int:
    """Count magnitudes, which are compared."""
    (type_,) = call.types
    return type_.num_bytes if type_.dtype.is_floating_point else 0


def _finite(call: LocalCall) -> int:
    """Count the same, and two answers: what is itself, and what is not infinite."""
    (type_,) = call.types
    return _infinite(call) + 2 * type_.numel * type_.dtype.is_floating_point


def _answered(call: LocalCall) -> int:
    """Count what is true of numbers."""
    (type_,) = call.types
    is_answer = type_.dtype in (torch.bool, torch.uint8)
    return type_.numel * (call.device == "cpu" and not is_answer)


def _chosen(call: LocalCall) -> int:
    """Count what is chosen from, cast to one dtype; the condition is read as it is."""
    return _cast_to(call.results[0].dtype, call.types[1:]) * (call.device == "cpu")


def _filled(call: LocalCall) -> int:
    """Count nothing: the mask is read as it is."""
    return 0


def _cast_to(dtype: torch.dtype, types: Sequence[TensorType]) -> int:
    """Return the bytes of tensors that are cast to a dtype that holds theirs."""
    return sum(
        type_.numel * dtype.itemsize
        for type_ in types
        if type_.dtype != dtype and torch.promote_types(type_.dtype, dtype) == dtype
    )


def _put_in_order(call: LocalCall, *, num: int) -> int:
    """Count copies of the first operands, where they do not lie in order."""
    if call.device != "cpu":
        return 0
    return sum(call.types[i].num_bytes for i in range(num) if not call.is_in_order(i))


def _measured(call: LocalCall) -> int:
    """Count what complex numbers are measured as, complex too."""
    (type_,) = call.types
    return type_.num_bytes if type_.dtype.is_complex else _cast(call)


def _made_real(call: LocalCall) -> int:
    """Count frequencies once more: all dims but the last are transformed before it.

    What comes of that does not lie in order, and is copied where there are other dims.
    Source: aten/src/ATen/native/mkl/SpectralOps.cpp of torch 2.13, ``_fft_c2r_mkl``.
    """
    (type_,) = call.types
    dims = call.arguments[1] if call.arguments else ()
    is_first = call.device == "cpu" and len(dims) > 1
    return type_.num_bytes * (1 + (type_.ndim > 2)) * is_first


def _safe_softmax(call: LocalCall) -> int:
    """Count what says of each score whether it is masked out."""
    return call.types[0].numel


def _dropout_backward(call: LocalCall) -> int:
    """Count the mask as numbers, then the product that is not scaled yet."""
    return call.result_bytes


def _gelu_backward(call: LocalCall) -> int:
    """Count what oneDNN makes where only the input lies in order: both once more."""
    grad = call.types[0]
    is_onednn = call.device == "cpu" and grad.dtype == torch.float32
    is_apart = call.is_in_order(1) and not call.is_in_order(0)
    return 2 * grad.num_bytes * (is_onednn and is_apart)


def _added_widely(call: LocalCall) -> int:
    """Count the f32 in which 16 bits are added up, or read, at places of their own."""
    (made,) = call.results
    return made.numel * 4 if call.device == "cpu" and made.dtype in _HALF else 0


_HALF = (torch.float16, torch.bfloat16)


def _attention(call: LocalCall) -> int:
    """Count what attention and its backward make (compiler/capture/attention.py).

    A boolean mask becomes scores to add. The results of flash attention lie as its
    query does, those of its backward with the heads inside of the sequence; what is not
    contiguous is copied, when all else is gone. CUDA's kernels take a key for every
    query's head, and give the gradient of each. Where there is no such kernel, scores
    and what is computed of them exist for every query and key: three at once, in the
    backward five.
    """
    is_backward = len(call.results) == 3
    query, key, value = call.types[is_backward : 3 + is_backward]
    masks = [type_ for type_ in call.types if type_.dtype == torch.bool]
    mask = sum(type_.numel for type_ in masks) * query.dtype.itemsize
    num_heads, size = query.shape[1], query.shape[-1]
    is_square = size == value.shape[-1]
    on_cpu = call.device == "cpu" and num_heads == key.shape[1]
    on_cuda = call.device == "cuda" and query.dtype.itemsize <= 4
    repeated = num_heads // max(key.shape[1], 1) if num_heads != key.shape[1] else 0
    heads = repeated * (key.num_bytes + value.num_bytes)
    if is_square and (on_cpu or on_cuda):
        is_copied = is_backward or not call.is_in_order(0)
        copied = call.result_bytes if is_copied else 0
        made = 2 * mask + sum(type_.num_bytes for type_ in masks)  # before the kernel
        own = heads * (1 + is_backward)
        return max(mask + own, copied, made - call.result_bytes)
    accumulated = 4 if query.dtype in _HALF else query.dtype.itemsize
    rows = prod(query.shape[:-1]) * accumulated  # one number per query
    scores = (5 if is_backward else 3) * rows * key.shape[-2]
    return scores + heads + mask + rows - call.result_bytes


def _grouped(call: LocalCall) -> int:
    """Count a group's rows, and what they are multiplied to (capture/grouped.py).

    A rank that has some of the groups has as many of the rows in each as if it had all.
    A GPU has all rows in order, and what comes of them (capture/sorted_groups.py).
    """
    first, second, member = call.types
    (made,) = call.results
    other = made if len(made.shape) == 2 else second
    rows = member.shape[0]
    if call.device != "cuda":
        rows = -(-rows // max(member.shape[1] * call.ways(2, 1), 1))
    return rows * (first.shape[1] + other.shape[1]) * made.dtype.itemsize


def _ctc_loss(call: LocalCall) -> int:
    """Count the paths through the targets, of which there are at the most as many."""
    return _paths(*call.types[:2])


def _ctc_loss_backward(call: LocalCall) -> int:
    """Count the same once more, from the other end (capture/ctc.py)."""
    return 2 * _paths(*call.types[1:3])


def _paths(scores: TensorType, targets: TensorType) -> int:
    """Return the bytes of a number per sample, step, target and blank around it.

    Targets one behind the other are taken to be equally long.
    """
    steps, batch, _ = scores.shape
    longest = -(-targets.numel // max(batch, 1))
    return steps * batch * (2 * longest + 1) * scores.dtype.itemsize


def _random(call: LocalCall) -> int:
    """Count the words of Philox, of as many numbers as are drawn at once."""
    (drawn,) = call.results
    _, _, sizes, _, kind = call.arguments
    return held_bytes(drawn.shape, sizes, kind, call.device)


def _sum(call: LocalCall) -> int:
    """Count numbers of the result's dtype, which others are made before they are added.

    Booleans become integers. 16 bits are added up in 32 where the dims that are added
    up do not lie side by side.
    Source: aten/src/ATen/native/ReduceOps.cpp of torch 2.13, ``should_use_acc_buffer``.
    """
    (summed,), (made,) = call.types, call.results
    if call.device != "cpu" and summed.dtype != torch.bool:
        return 0
    if made.dtype in _HALF and summed.dtype == made.dtype and _lie_apart(call):
        return 4 * (summed.numel + made.numel)
    return _cast_to(made.dtype, call.types)


def _scanned(call: LocalCall) -> int:
    """Count numbers of the result's dtype, which others are made before."""
    return _cast_to(call.results[0].dtype, call.types) * (call.device == "cpu")


def _lie_apart(call: LocalCall) -> bool:
    """Whether dims longer than one that stay lie between dims that are added up."""
    ((type_, strides),), rest = call.operands, call.arguments[1:]
    dims: Sequence[int] = rest[0] if rest and isinstance(rest[0], list) else ()
    taken = {dim % type_.ndim for dim in dims}
    long = [dim for dim in range(type_.ndim) if type_.shape[dim] > 1]
    kinds = [dim in taken for dim in sorted(long, key=lambda dim: -strides[dim])]
    return sum(kind for kind, _ in groupby(kinds)) > 1


def _mean(call: LocalCall) -> int:
    """Count what is added up, in f32 at least, and the sum, if it is not the result."""
    (made,) = call.results
    to = torch.promote_types(made.dtype, torch.float32)
    summed = made.numel * to.itemsize if made.dtype != to else 0
    return _cast_to(to, call.types[:1]) + summed if call.device == "cpu" else 0


def _convolution(call: LocalCall) -> int:
    """Count operands that are put in order, and oneDNN's blocks.

    Filters of one pixel, on fewer than 16 images, are counted too: they run without
    oneDNN where a rank has a single thread, and a plan does not know how many it gets.
    Source: aten/src/ATen/native/Convolution.cpp of torch 2.13, ``use_mkldnn``.
    """
    image, weight, *_ = call.types
    blocks = convolution_bytes(image, weight, call.results[0])
    return _convolved(call, (0, 1), (0, 1), blocks)


def _convolution_backward(call: LocalCall) -> int:
    """Count the same: blocks for the image's gradient, then for the weight's."""
    grad, image, weight = call.types[:3]
    made = {type_.shape for type_ in call.results}
    blocks = 0
    if weight.shape in made:
        blocks = weight_gradient_bytes(grad, image, weight)
    if image.shape in made:
        first = image_gradient_bytes(grad, image, weight)
        blocks = max(blocks, first - call.result_bytes)
    return _convolved(call, (0, 1, 2), (1, 2), blocks)


def _convolved(
    call: LocalCall, read: Sequence[int], asked: Sequence[int], blocks: int
) -> int:
    """Count what is read that is put in order, then blocks; a GPU needs neither.

    Where an operand that is asked lies by its channels, so do all, without blocks.
    """
    if call.device != "cpu":
        return 0
    by_channels = any(is_by_channels(*call.operands[i]) for i in asked)
    is_right = is_by_channels if by_channels else is_in_order
    wrong = (i for i in read if not is_right(*call.operands[i]))
    copied = sum(call.types[i].num_bytes for i in wrong)
    return copied + (0 if by_channels else blocks)


def _batch_norm_backward(call: LocalCall) -> int:
    """Count the gradient of the image once more: it is built twice."""
    return call.types[0].num_bytes if call.device == "cpu" else 0


_first_in_order = partial(_put_in_order, num=1)
_both_in_order = partial(_put_in_order, num=2)

_ROWS: Mapping[str, Callable[[LocalCall], int]] = {
    "aten._fft_c2r.default": _made_real,
    "aten._log_softmax.default": _first_in_order,
    "aten._log_softmax_backward_data.default": _both_in_order,
    "aten._safe_softmax.default": _safe_softmax,
    "aten._softmax.default": _first_in_order,
    "aten._softmax_backward_data.default": _both_in_order,
    "aten.abs.default": _measured,
    "aten.all.default": _answered,
    "aten.all.dim": _answered,
    "aten.all.dims": _answered,
    "aten.angle.default": _measured,
    "aten.any.default": _answered,
    "aten.any.dim": _answered,
    "aten.any.dims": _answered,
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.cumsum.default": _scanned,
    "aten.embedding_dense_backward.default": _first_in_order,
    "aten.gather.default": _added_widely,
    "aten.gelu_backward.default": _gelu_backward,
    "aten.isfinite.default": _finite,
    "aten.isinf.default": _infinite,
    "aten.log_sigmoid_forward.default": _first_in_order,
    "aten.masked_fill.Scalar": _filled,
    "aten.mean.default": _mean,
    "aten.mean.dim": _mean,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.native_dropout_backward.default": _dropout_backward,
    "aten.native_layer_norm.default": _first_in_order,
    "aten.native_layer_norm_backward.default": _both_in_order,
    "aten.scatter_add.default": _added_widely,
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "aten.where.self": _chosen,
    "partita.attention.default": _attention,
    "partita.attention_backward.default": _attention,
    "partita.ctc_loss.default": _ctc_loss,
    "partita.ctc_loss_backward.default": _ctc_loss_backward,
    "partita.grouped_multiply.default": _grouped,
    "partita.grouped_outer.default": _grouped,
    "partita.random.default": _random,
}
