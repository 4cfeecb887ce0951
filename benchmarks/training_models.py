"""The models, batches and losses that steps of training are timed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import nn

Batch = dict[str, torch.Tensor]
Built = tuple[nn.Module, Batch]

_LAYERS, _HIDDEN, _SEQUENCE, _ROWS = 4, 256, 128, 8


class Regression(nn.Module):
    """A model that maps rows to rows, and its mean squared error."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss of rows ``x`` for the rows wanted."""
        return {"loss": nn.functional.mse_loss(self.body(x), y)}


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(nn.functional.gelu(self.inner(self.norm(x))))


def _tokens(vocabulary: int) -> Batch:
    ids = torch.randint(0, vocabulary, (_ROWS, _SEQUENCE))
    return {"input_ids": ids, "labels": ids.clone()}


def _gpt2(vocabulary: int) -> Built:
    config = transformers.GPT2Config(
        n_layer=_LAYERS,
        n_embd=_HIDDEN,
        n_head=4,
        n_positions=_SEQUENCE,
        vocab_size=vocabulary,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    return transformers.GPT2LMHeadModel(config), _tokens(vocabulary)


def _llama(vocabulary: int) -> Built:
    config = transformers.LlamaConfig(
        hidden_size=_HIDDEN,
        intermediate_size=704,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=_SEQUENCE,
        vocab_size=vocabulary,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config), _tokens(vocabulary)


def _mlp() -> Built:
    layers = [nn.Linear(1024, 1024) for _ in range(8)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    body = nn.Sequential(*(each for layer in layers for each in (layer, nn.GELU())))
    return Regression(body), {"x": torch.randn(256, 1024), "y": torch.randn(256, 1024)}


def _tiny() -> Built:
    body = nn.Sequential(*(_Block(64) for _ in range(16)), nn.Linear(64, 64))
    return Regression(body), {"x": torch.randn(32, 64), "y": torch.randn(32, 64)}


MODELS: dict[str, Callable[[], Built]] = {
    "gpt2": lambda: _gpt2(50257),
    "gpt2-4k": lambda: _gpt2(4096),
    "llama": lambda: _llama(32000),
    "llama-4k": lambda: _llama(4096),
    "mlp": _mlp,
    "tiny": _tiny,
}


def build(name: str) -> Built:
    """Return a model and its global batch, the same in every process."""
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    return model.train(), batch


def loss_of(outputs: Any) -> torch.Tensor:
    """Return the loss among a model's outputs."""
    return outputs["loss"]
