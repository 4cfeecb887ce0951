"""The memory-efficient attention that aten has for CUDA: float32, and scores to add.

Queries, keys and values are ``[batch, heads, positions, width]``, log-sum-exp
``[batch, heads, positions]``, scores to add ``[batch, heads, queries, keys]`` or what
broadcasts to it. The kernels want log-sum-exp for a multiple of ``_QUERIES`` of
positions, and rows of scores that begin at a multiple of ``_KEYS`` of them.

Source: Rabe and Staats, "Self-attention Does Not Need O(n^2) Memory",
arXiv:2112.05682; what the kernels want is of torch's
aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_backward.h
(``kAlignLSE``) and aten/src/ATen/native/transformers/attention.cpp (``pad_bias``).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from partita.compiler.capture.flash_attention import in_rows

_QUERIES = 32
_KEYS = 16


def cuda_efficient_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Return the output and log-sum-exp of aten's efficient attention for CUDA."""
    out, lse, _, _ = torch.ops.aten._scaled_dot_product_efficient_attention.default(
        *map(in_rows, (query, key, value)),
        *(_as_wanted(mask, query, key), True, 0.0, is_causal),
        scale=scale,
    )
    return out, lse.narrow(-1, 0, query.shape[2])


def cuda_efficient_attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    lse: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value of ``cuda_efficient_attention``.

    Without dropout the state of the random generator is not read. The kernels for 16
    bits read the output as they make it, with the heads inside of the sequence.
    """
    op = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    state = torch.zeros((), dtype=torch.int64, device=query.device)
    lse = _padded(lse, -query.shape[2] % _QUERIES, torch.inf)
    out = out.transpose(1, 2).contiguous().transpose(1, 2)
    *grads, _ = op(
        *(in_rows(grad), *map(in_rows, (query, key, value))),
        *(_as_wanted(mask, query, key), out, lse, state, state, 0.0),
        *([True, True, True, False], is_causal),
        scale=scale,
    )
    return grads[0], grads[1], grads[2]


def _as_wanted(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return scores to add for every head and query, in rows that begin aligned."""
    if mask is None:
        return None
    length = key.shape[2]
    mask = mask.expand(*mask.shape[:-1], length)
    mask = _padded(mask, -length % _KEYS, 0.0).narrow(-1, 0, length)
    return mask.expand(*query.shape[:3], length)


def _padded(x: Tensor, count: int, value: float) -> Tensor:
    """Return ``x`` with so many more in every row."""
    return functional.pad(x, (0, count), value=value) if count else x
