"""The flash attention that aten has for CPUs and for CUDA.

Queries, keys and values are ``[batch, heads, positions, width]``, log-sum-exp
``[batch, heads, positions]``. The kernels read what is beside an element as the next
one of its row; those for CPUs do not check that it is, so queries, keys and values are
made so.
"""

from __future__ import annotations

import torch


def in_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return ``tensor``, copied unless its last dim is of elements side by side."""
    is_so = tensor.stride(-1) == 1 or tensor.shape[-1] == 1
    return tensor if is_so else tensor.contiguous()


def cpu_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and log-sum-exp of aten's flash attention for the CPU."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(
        *map(in_rows, (query, key, value)),
        *(0.0, is_causal),
        attn_mask=mask,
        scale=scale,
    )


def cpu_flash_attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    mask: torch.Tensor | None,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value of ``cpu_flash_attention``."""
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return op(
        *(grad, *map(in_rows, (query, key, value))),
        *(out, lse, 0.0, is_causal),
        attn_mask=mask,
        scale=scale,
    )


def cuda_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output and log-sum-exp of aten's flash attention for CUDA."""
    out, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention.default(
        *map(in_rows, (query, key, value)), 0.0, is_causal, scale=scale
    )
    return out, lse


def cuda_flash_attention_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    is_causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of query, key and value of ``cuda_flash_attention``.

    Without dropout the state of the random generator is not read, and sequences of
    equal length have no offsets.
    """
    op = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    sizes = (None, None, query.shape[2], key.shape[2])
    state = (
        torch.zeros(2, dtype=torch.uint64, device=query.device),
        torch.zeros((), dtype=torch.uint64, device=query.device),
    )
    return op(
        *map(in_rows, (grad, query, key, value)),
        *(out, lse.contiguous()),
        *(*sizes, 0.0, is_causal, *state),
        scale=scale,
    )
