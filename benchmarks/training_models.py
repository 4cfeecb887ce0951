"""The models, batches and losses that steps of training are timed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from language_models import Case
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


def _language_model(name: str, vocabulary: int) -> Built:
    return Case(name, _LAYERS, _HIDDEN, _ROWS, _SEQUENCE, vocabulary).build()


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
    "gpt2": lambda: _language_model("gpt2", 50257),
    "gpt2-4k": lambda: _language_model("gpt2", 4096),
    "llama": lambda: _language_model("llama", 32000),
    "llama-4k": lambda: _language_model("llama", 4096),
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
