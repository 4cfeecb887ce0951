"""The language models of the publications, as plain modules, and their placements.

Nothing here knows of ranks: a model is what one would write for a single device. What
the published runs did on several is said by pins (``pins``), as a user would say it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import partita as pt

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """A language model.

    Attributes:
        layers: how many there are.
        hidden: the width of the residual stream.
        heads: of the attention.
        sequence: tokens of one sample.
        vocabulary: rows of the embedding, padded as the run did.
        inner: the width inside of the feed-forward.
        is_llama: RMS norms, rotary positions and gated SiLU; else GPT-2's layers.
        is_flash: attention that never writes its scores.
        is_tied: the embedding is the output's weight, too.
        dropout: of the residual stream and of the attention's scores.
    """

    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    inner: int
    is_llama: bool = False
    is_flash: bool = False
    is_tied: bool = True
    dropout: float = 0.0


class Scores(nn.Module):
    """Attention that writes its scores, as products and softmax in a row.

    The mask is added by the first product, so it takes no pass of its own; fused
    kernels of softmax and mask (Megatron-LM) take none either.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.dropout = shape.dropout

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Return what each position takes of the others."""
        scores = torch.matmul(q, k.transpose(2, 3))
        weights = functional.dropout(torch.softmax(scores, -1), self.dropout)
        return torch.matmul(weights, v)


class Flash(nn.Module):
    """Attention in one kernel."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Return what each position takes of the others."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Attention(nn.Module):
    """Query, key and value; what each position takes of the others; the way out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.is_rotary = shape.is_llama
        size, bias = shape.hidden, not shape.is_llama
        self.qkv = nn.Linear(size, 3 * size, bias)  # head by head
        self.core = Flash() if shape.is_flash else Scores(shape)
        self.out = nn.Linear(size, size, bias)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Return the change that attention makes to the stream."""
        batch, length, size = x.shape
        parts = self.qkv(x).view(batch, length, self.heads, -1).transpose(1, 2)
        q, k, v = parts.chunk(3, -1)
        if self.is_rotary:
            q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
        y = self.core(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, length, size))


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


class FeedForward(nn.Module):
    """Up, a nonlinearity, down."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        size, inner, bias = shape.hidden, shape.inner, not shape.is_llama
        self.is_gated = shape.is_llama
        self.up = nn.Linear(size, (1 + self.is_gated) * inner, bias)
        self.down = nn.Linear(inner, size, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the change that it makes to the stream."""
        y = self.up(x)
        if self.is_gated:  # a column of the gate beside each of what it lets through
            gate, y = y.view(*y.shape[:-1], -1, 2).unbind(-1)
            return self.down(functional.silu(gate) * y)
        return self.down(functional.gelu(y, approximate="tanh"))


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and beside the stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(shape), _norm(shape)
        self.attention = Attention(shape)
        self.mlp = FeedForward(shape)
        self.dropout = shape.dropout

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        """Return the stream behind the layer."""
        y = self.attention(self.norm1(x), cos, sin)
        x = x + functional.dropout(y, self.dropout)
        return x + functional.dropout(self.mlp(self.norm2(x)), self.dropout)


class LanguageModel(nn.Module):
    """Predicts the next token; returns the loss."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocabulary, shape.hidden)
        self.positions = (
            None if shape.is_llama else nn.Embedding(shape.sequence, shape.hidden)
        )
        angles = torch.zeros(shape.sequence, shape.hidden // shape.heads)
        self.register_buffer("cos", angles, persistent=False)
        self.register_buffer("sin", angles.clone(), persistent=False)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = _norm(shape)
        self.head = nn.Linear(shape.hidden, shape.vocabulary, bias=False)
        if shape.is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a batch."""
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = self.head(self.norm(x)).float()
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def _norm(shape: Shape) -> nn.Module:
    return (nn.RMSNorm if shape.is_llama else nn.LayerNorm)(shape.hidden)


def build(shape: Shape, batch: int) -> tuple[nn.Module, Inputs]:
    """Return the model, in 16 bits and without memory, and a batch."""
    with torch.device("meta"):
        ids = torch.zeros(batch, shape.sequence, dtype=torch.long)
        model = LanguageModel(shape).to(torch.bfloat16)
    return model, {"ids": ids, "labels": ids}


def pins(
    model: nn.Module, mesh: pt.Mesh, zero: int, is_sequence_parallel: bool
) -> dict[str, str]:
    """Return Megatron's placements on a mesh ``dp, tp``.

    Narayanan et al., arXiv:2104.04473, section 2.3: the first of two products by its
    columns, the second by its rows, the vocabulary split. Korthikanti et al.,
    arXiv:2205.05198, section 4.2.2: between them the sequence is split instead of the
    work repeated. ZeRO-1 (Rajbhandari et al., arXiv:1910.02054) splits what the
    optimizer has along ``dp``.
    """
    dp, tp = (size > 1 for size in mesh.sizes)

    def on(one: str, other: str) -> str:
        return f"({one if dp else 'B'}, {other if tp else 'B'})"

    found: dict[str, str] = {}
    for name, parameter in model.named_parameters():
        layer, is_matrix = name.split(".")[-2], parameter.ndim == 2
        if layer in ("qkv", "up", "embedding", "head"):
            own, rest = "S(0)", "S(1)"
        elif layer in ("out", "down") and is_matrix:
            own, rest = "S(1)", "S(0)"
        else:
            own, rest = "B", "S(0)"
        pin = on("B", own)
        if is_matrix or layer not in ("out", "down"):
            pin += f"; use={on('B', own)}"  # else a bias, added once to the sum
        if zero and (is_matrix or own == "B"):
            pin += f"; optimizer={on(rest, own)}"
        found[name] = pin
    stream = on("S(0)", "S(1)" if is_sequence_parallel else "B")
    found |= dict.fromkeys(("ids", "labels"), on("S(0)", "B"))
    has_bias = any(name.endswith("qkv.bias") for name in found)
    found |= _products(on, has_bias)
    found |= {
        "layers.*/add.Tensor/*": stream,
        "layers.*norm*/*norm*/*": stream,
        "norm/*norm*/*": stream,
        "layers.*norm*/*~grad/add.Tensor/*": stream,
        "head/mm/0": on("S(0)", "S(1)"),
        "head/mm/0~grad/mm/0": on("P(sum)", "S(0)"),  # of the weight
        "head/mm/0~grad/mm/1": on("S(0)", "P(sum)"),
    }
    return found


def _products(on: Callable[[str, str], str], has_bias: bool) -> dict[str, str]:
    """Return the pins of the layers' products, and of their gradients.

    With a bias the gradient of what a product is given comes first, then that of its
    weight; without one it is the other way round.
    """
    op, given, weight = (
        ("addmm", "mm/0", "mm/1") if has_bias else ("mm", "mm/1", "mm/0")
    )
    found: dict[str, str] = {}
    for layer, is_column in (
        ("qkv", True),
        ("up", True),
        ("out", False),
        ("down", False),
    ):
        name = f"layers.*.{layer}/{op}/0"
        cut, summed = on("S(0)", "S(1)"), on("S(0)", "P(sum)")
        found[name] = cut if is_column else summed
        found[f"{name}~grad/{given}"] = summed if is_column else cut
        found[f"{name}~grad/{weight}"] = on("P(sum)", "S(0)" if is_column else "S(1)")
    return found
