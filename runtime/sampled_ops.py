"""Ops whose speed neither matmuls nor memory tell, each with a call to time.

Some compute much for each element, some reduce or index; a profile states what each
reaches. Sizes are those of a transformer's layer: what matters is more than a cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from partita.compiler.capture.attention import attention, attention_backward
from partita.compiler.capture.random_numbers import random

aten = torch.ops.aten


@dataclass(frozen=True)
class SampledOp:
    """A call of ``op``; ``flops`` where arithmetic bounds it, 0 where memory ought to.

    ``name`` is that of the op in plans and in the table of rules.
    """

    name: str
    op: Any
    args: tuple[Any, ...]
    flops: float = 0.0

    def __call__(self) -> Any:
        """Run it once."""
        return self.op(*self.args)


def sampled_ops(rows: int, columns: int, device: torch.device) -> Iterator[SampledOp]:
    """Yield the calls, on float32 tensors of ``[rows, columns]``."""
    x = torch.rand(rows, columns, device=device) + 0.5
    y = torch.rand_like(x)
    for op in (
        aten.tanh,
        aten.exp,
        aten.erf,
        aten.log,
        aten.sigmoid,
        aten.silu,
        aten.gelu,
        aten.relu,
        aten.rsqrt,
        aten.cos,
        aten.clone,
    ):
        yield _sampled(op.default, x)
    for op in (aten.tanh_backward, aten.gelu_backward, aten.silu_backward):
        yield _sampled(op.default, y, x)
    yield _sampled(aten.pow.Tensor_Scalar, x, 3.0)
    yield _sampled(aten.div.Tensor, x, y)
    yield _sampled(aten.sum.dim_IntList, x, [0], True)
    yield _sampled(aten._softmax.default, x, -1, False)
    yield _sampled(aten._softmax_backward_data.default, x, y, -1, torch.float32)
    yield _sampled(aten._log_softmax.default, x, -1, False)
    yield _sampled(aten._log_softmax_backward_data.default, x, y, -1, torch.float32)
    weight, bias = (
        torch.ones(columns, device=device),
        torch.zeros(columns, device=device),
    )
    yield _sampled(aten.native_layer_norm.default, x, [columns], weight, bias, 1e-5)
    mean, rstd = x.mean(-1, True), x.mean(-1, True)
    grad = (y, x, [columns], mean, rstd, weight, bias, [True, True, True])
    yield _sampled(aten.native_layer_norm_backward.default, *grad)
    ids = torch.arange(rows, device=device) % rows
    yield _sampled(aten.embedding.default, x, ids)
    yield _sampled(aten.embedding_dense_backward.default, y, ids, rows, -1, False)
    yield _sampled(aten.scatter.value, x, -1, ids[:, None] % columns, 1.0)
    yield _sampled(aten.gather.default, x, -1, ids[:, None] % columns)
    seed = torch.zeros((), dtype=torch.int64, device=device)
    indices = [torch.arange(size, device=device) for size in (rows, columns)]
    drawn = seed, indices, [rows, columns], 1, "uniform"
    yield SampledOp("partita.random.default", random, drawn)
    yield from _attentions(rows, columns, device)


def _sampled(op: Any, *args: Any) -> SampledOp:
    return SampledOp(str(op), op, args)


def _attentions(rows: int, columns: int, device: torch.device) -> Iterator[SampledOp]:
    """Yield attention of heads of 64, forward and backward.

    With all pairs of positions and causal, one after the other: a plan has either, and
    counts half the work of causal, of which kernels spare as much as their blocks let.
    """
    heads, dim, length = max(columns // 256, 1), 64, 256
    shape = max(rows // length, 1), heads, length, dim
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    q, k, v, g = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    products = q.numel() * length
    both = False, True
    forward = [(q, k, v, None, causal, dim**-0.5) for causal in both]
    backward = [
        (g, q, k, v, None, *attention(*args), causal, dim**-0.5)
        for causal, args in zip(both, forward, strict=True)
    ]
    name = "partita.attention"
    yield SampledOp(f"{name}.default", _each(attention), tuple(forward), 6.0 * products)
    back = _each(attention_backward)
    yield SampledOp(f"{name}_backward.default", back, tuple(backward), 15.0 * products)


def _each(op: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Return what calls ``op`` on one tuple of arguments after another."""

    def call(*calls: tuple[Any, ...]) -> list[Any]:
        return [op(*args) for args in calls]

    return call


def touched_bytes(call: SampledOp, result: Any) -> int:
    """Return the bytes of the tensors that go in and come out."""
    found = 0
    stack: list[Any] = [call.args, result]
    while stack:
        value = stack.pop()
        if isinstance(value, Tensor):
            found += value.numel() * value.element_size()
        elif isinstance(value, (tuple, list)):
            stack += value
    return found
