"""Attention as one op on every device.

``scaled_dot_product_attention`` becomes other aten ops on CPU, CUDA and meta; a plan
made on one must hold on all (DESIGN, decision 5). So capture puts this op in its
place, and it picks the kernel when it runs.

Shapes: query ``[b, h, s, d]``, key ``[b, g, t, d]``, value ``[b, g, t, e]``, where each
of the g key heads serves h/g query heads; mask broadcasts to ``[b, h, s, t]``, boolean
(True: attend) or added to the scores. Returns the output ``[b, h, s, e]`` and the
log-sum-exp of the scores ``[b, h, s]``, in float32 at least, which the backward
recomputes from (Dao et al., "FlashAttention", arXiv:2205.14135, algorithm 4).

Forward and backward must pick the same kernel, so what they pick by is the same.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from partita.compiler.capture.efficient_attention import (
    cuda_efficient_attention,
    cuda_efficient_attention_backward,
)
from partita.compiler.capture.flash_attention import (
    cpu_flash_attention,
    cpu_flash_attention_backward,
    cuda_flash_attention,
    cuda_flash_attention_backward,
)
from partita.compiler.capture.in_place_of import InPlaceOf

_HALF = (torch.float16, torch.bfloat16)


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.dtype != torch.bool:
        return mask if mask is None else mask.to(dtype)
    zeros = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return zeros.masked_fill(~mask, float("-inf"))


def _has_cpu_kernel(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return (
        query.device.type == "cpu"
        and query.shape[-1] == value.shape[-1]
        and query.shape[1] == key.shape[1]
        and min(query.numel(), key.numel()) > 0
    )


def _has_cuda_kernel(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> bool:
    """Whether efficient attention takes this; where it is picky, no is the answer."""
    size = query.shape[-1]
    return (
        query.device.type == "cuda"
        and query.dtype in (*_HALF, torch.float32)
        and size == value.shape[-1]
        and size * query.dtype.itemsize % 16 == 0
        and not (causal and query.shape[2] != key.shape[2])
        and min(query.numel(), key.numel()) > 0
        and _is_ampere(query.device)
    )


def _is_for_flash(query: Tensor, mask: Tensor | None) -> bool:
    """Whether flash attention takes it, too, which is the faster one."""
    return query.dtype in _HALF and mask is None and query.shape[-1] <= 128


@cache
def _is_ampere(device: torch.device) -> bool:
    """Whether the device is of NVIDIA's Ampere generation or a later one."""
    return not torch.version.hip and torch.cuda.get_device_capability(device) >= (8, 0)


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which sums over values of ``dtype`` are kept."""
    return torch.float32 if dtype in _HALF else dtype


def _scores(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> Tensor:
    scores = (query @ key.transpose(-2, -1)).to(_accumulated(query.dtype)) * scale
    if mask is not None:
        scores = scores + mask
    if is_causal:
        ones = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        scores = scores.masked_fill(~ones.tril(), float("-inf"))
    return scores


def _repeat_heads(tensor: Tensor, num_heads: int) -> Tensor:
    repeats = num_heads // max(tensor.shape[1], 1)
    return tensor if repeats == 1 else tensor.repeat_interleave(repeats, dim=1)


def _sum_heads(tensor: Tensor, num_heads: int) -> Tensor:
    if tensor.shape[1] == num_heads:
        return tensor
    return tensor.unflatten(1, (num_heads, -1)).sum(2)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return softmax(query key^T scale + mask) value, and the log-sum-exp.

    They lie as the kernel leaves them, which takes them so in the backward, too.
    """
    mask = _additive(mask, query.dtype)
    if _has_cpu_kernel(query, key, value):
        return cpu_flash_attention(query, key, value, mask, is_causal, scale)
    num_heads = query.shape[1]
    key, value = _repeat_heads(key, num_heads), _repeat_heads(value, num_heads)
    if _has_cuda_kernel(query, key, value, is_causal):
        if _is_for_flash(query, mask):
            return cuda_flash_attention(query, key, value, is_causal, scale)
        return cuda_efficient_attention(query, key, value, mask, is_causal, scale)
    scores = _scores(query, key, mask, is_causal, scale)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.unsqueeze(-1)).exp().nan_to_num(0.0).to(value.dtype)
    return weights @ value, lse


@torch.library.custom_op("partita::attention", mutates_args=())
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Compute ``attend``; what it returns is dense, whatever kernel it was."""
    out, lse = attend(query, key, value, mask, is_causal, scale)
    return out.contiguous(), lse.contiguous()


@attention.register_fake
def _attention_types(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    shape = query.shape[:-1]
    lse = query.new_empty(shape, dtype=_accumulated(query.dtype))
    return query.new_empty((*shape, value.shape[-1])), lse


def attend_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, as the kernel leaves them."""
    mask = _additive(mask, query.dtype)
    if _has_cpu_kernel(query, key, value):
        return cpu_flash_attention_backward(
            grad, query, key, value, out, lse, mask, is_causal, scale
        )
    num_heads, num_key_heads = query.shape[1], key.shape[1]
    key, value = _repeat_heads(key, num_heads), _repeat_heads(value, num_heads)
    if not _has_cuda_kernel(query, key, value, is_causal):
        scores = _scores(query, key, mask, is_causal, scale)
        weights = (scores - lse.unsqueeze(-1)).exp().nan_to_num(0.0)
        grad_weights = grad @ value.transpose(-2, -1)
        delta = (grad * out).sum(-1, keepdim=True)
        grad_scores = (weights * (grad_weights - delta) * scale).to(query.dtype)
        grad_query = grad_scores @ key
        grad_key = grad_scores.transpose(-2, -1) @ query
        grad_value = weights.to(grad.dtype).transpose(-2, -1) @ grad
    elif _is_for_flash(query, mask):
        grad_query, grad_key, grad_value = cuda_flash_attention_backward(
            grad, query, key, value, out, lse, is_causal, scale
        )
    else:
        grad_query, grad_key, grad_value = cuda_efficient_attention_backward(
            grad, query, key, value, out, lse, mask, is_causal, scale
        )
    grad_key = _sum_heads(grad_key, num_key_heads)
    return grad_query, grad_key, _sum_heads(grad_value, num_key_heads)


@torch.library.custom_op("partita::attention_backward", mutates_args=())
def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute ``attend_backward``; what it returns is dense."""
    grads = attend_backward(grad, query, key, value, mask, out, lse, is_causal, scale)
    return grads[0].contiguous(), grads[1].contiguous(), grads[2].contiguous()


@attention_backward.register_fake
def _attention_backward_types(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        query.new_empty(query.shape),
        key.new_empty(key.shape),
        value.new_empty(value.shape),
    )


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    query, key, value, mask, ctx.is_causal, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, mask, *output)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    query, key, value, mask, out, lse = ctx.saved_tensors
    grads = attention_backward(
        grad, query, key, value, mask, out, lse, ctx.is_causal, ctx.scale
    )
    return (*grads, None, None, None)


attention.register_autograd(_differentiate, setup_context=_save_for_backward)


@contextmanager
def one_attention() -> Generator[None]:
    """Within it ``scaled_dot_product_attention`` is the one op, where that can be.

    A mask that needs a gradient and scores dropped at random are left to torch.
    """
    plain = nn.functional.scaled_dot_product_attention

    def attend(*args: Any, **kwargs: Any) -> Tensor:
        given = _attention_call(*args, **kwargs)
        if given is None:
            return plain(*args, **kwargs)
        return attention(*map(_autocast, given))[0]

    # Torch's own functions call it where a mode no longer looks.
    inside = patch.object(nn.functional, plain.__name__, attend)
    with inside, InPlaceOf({plain: attend}):
        yield


def _autocast(argument: Any) -> Any:
    """Return an argument as autocast would hand it on to torch's own attention."""
    device = argument.device.type if isinstance(argument, Tensor) else ""
    if not device or not torch.is_autocast_enabled(device):
        return argument
    is_cast = argument.is_floating_point() and argument.dtype != torch.float64
    return argument.to(torch.get_autocast_dtype(device)) if is_cast else argument


def _attention_call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Any, ...] | None:
    """Return the op's arguments, ``None`` where it does not do what is asked for."""
    learned = attn_mask is not None and attn_mask.requires_grad
    if dropout_p or learned or any(t.ndim != 4 for t in (query, key, value)):
        return None
    if attn_mask is not None and attn_mask.ndim == 3:  # kernels take 2 or 4
        attn_mask = attn_mask.unsqueeze(0)
    shapes = broadcast(query.shape, key.shape, value.shape)
    query, key, value = (
        tensor if tensor.shape == shape else tensor.expand(shape)
        for tensor, shape in zip((query, key, value), shapes, strict=True)
    )
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return query, key, value, attn_mask, is_causal, scale


def broadcast(
    query: Sequence[int], key: Sequence[int], value: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Return the shapes to expand to, as torch broadcasts samples and heads.

    Key heads that serve several query heads stay as they are.

    Raises:
        RuntimeError: where torch does not broadcast them either.
    """
    (batch,) = torch.broadcast_shapes(query[:1], key[:1], value[:1])
    (num_key_heads,) = torch.broadcast_shapes(key[1:2], value[1:2])
    num_heads = query[1]
    if num_heads % max(num_key_heads, 1):
        (num_heads,) = torch.broadcast_shapes(query[1:2], (num_key_heads,))
    return (
        (batch, num_heads, *query[2:]),
        (batch, num_key_heads, *key[2:]),
        (batch, num_key_heads, *value[2:]),
    )
