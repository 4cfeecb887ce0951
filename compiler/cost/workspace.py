"""What kernels allocate for themselves while they run, where that is much.

Found by running the ops of many models under torch's profiler (torch 2.13, CPU): almost
all of them allocate their results and nothing else. Those that do not are rows here,
and tests run the kernels against them. What does not grow with the tensors is left out,
and what depends on values: the rows of each group of a grouped product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from partita.compiler.ir.tensor_type import TensorType


@dataclass(frozen=True, slots=True)
class LocalCall:
    """One rank's call of an op.

    ``operands`` are pairs: the type, and whether it is contiguous; ``device`` is
    ``cpu`` or ``cuda``.
    """

    op: str
    operands: Sequence[tuple[TensorType, bool]]
    results: Sequence[TensorType]
    device: str

    @property
    def types(self) -> list[TensorType]:
        """The operands' types."""
        return [type_ for type_, _ in self.operands]

    @property
    def result_bytes(self) -> int:
        """The bytes of all results."""
        return sum(type_.num_bytes for type_ in self.results)


def has_workspace(op: str) -> bool:
    """Whether calls of an op may hold more than operands and results."""
    return op in _ROWS


def workspace_bytes(call: LocalCall) -> int:
    """Return the most that a kernel holds beyond operands and results."""
    row = _ROWS.get(call.op)
    return 0 if row is None else max(row(call), 0)


_HALF = (torch.float16, torch.bfloat16)


def _attention(call: LocalCall) -> int:
    """Count what attention and its backward make (compiler/capture/attention.py).

    A boolean mask becomes scores to add. The results of flash attention lie as its
    query does, those of its backward with the heads inside of the sequence; what is not
    contiguous is copied. Where there is no such kernel, scores and what is computed of
    them exist for every query and key: three at once, in the backward five.
    """
    is_backward = len(call.results) == 3
    query, key, value = call.types[is_backward : 3 + is_backward]
    masks = [type_ for type_ in call.types if type_.dtype == torch.bool]
    mask = sum(type_.numel for type_ in masks) * query.dtype.itemsize
    num_heads, size = query.shape[1], query.shape[-1]
    is_square = size == value.shape[-1]
    on_cpu = call.device == "cpu" and num_heads == key.shape[1]
    on_cuda = call.device == "cuda" and query.dtype in _HALF and not mask
    if is_square and (on_cpu or on_cuda):
        _, in_order = call.operands[is_backward]
        copied = call.result_bytes if is_backward or not in_order else 0
        made = 2 * mask + sum(type_.num_bytes for type_ in masks)  # before the kernel
        return max(mask + copied, made - call.result_bytes)
    accumulated = 4 if query.dtype in _HALF else query.dtype.itemsize
    rows = prod(query.shape[:-1]) * accumulated  # one number per query
    repeated = num_heads // max(key.shape[1], 1) if num_heads != key.shape[1] else 0
    heads = repeated * (key.num_bytes + value.num_bytes)
    scores = (5 if is_backward else 3) * rows * key.shape[-2]
    return scores + heads + mask + rows - call.result_bytes


def _random(call: LocalCall) -> int:
    """Count the words of Philox: 17 of 64 bits per element at its peak."""
    (drawn,) = call.results
    return 17 * 8 * drawn.numel - drawn.num_bytes


def _sum(call: LocalCall) -> int:
    """Count the integers that booleans are made before they are added."""
    (summed,) = call.types
    return 8 * summed.numel if summed.dtype == torch.bool else 0


def _convolution(call: LocalCall) -> int:
    """Count what oneDNN has in blocks: image and weight, then the result.

    Filters of one pixel, on fewer than 16 images, are counted too: they run without
    oneDNN where a rank has a single thread, and a plan does not know how many it gets.
    Source: aten/src/ATen/native/Convolution.cpp of torch 2.13, ``use_mkldnn``.
    """
    if call.device != "cpu":
        return 0
    image, weight, *_ = call.types
    return max(image.num_bytes + weight.num_bytes, call.result_bytes)


def _convolution_backward(call: LocalCall) -> int:
    """Count the gradient, image and weight that oneDNN has in blocks."""
    if call.device != "cpu":
        return 0
    return sum(type_.num_bytes for type_ in call.types[:3])


def _batch_norm_backward(call: LocalCall) -> int:
    """Count the gradient of the image once more: it is built twice."""
    return call.types[0].num_bytes if call.device == "cpu" else 0


_ROWS: Mapping[str, Callable[[LocalCall], int]] = {
    "aten.convolution.default": _convolution,
    "aten.convolution_backward.default": _convolution_backward,
    "aten.native_batch_norm_backward.default": _batch_norm_backward,
    "aten.sum.default": _sum,
    "aten.sum.dim_IntList": _sum,
    "partita.attention.default": _attention,
    "partita.attention_backward.default": _attention,
    "partita.random.default": _random,
}
