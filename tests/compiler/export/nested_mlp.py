"""A model that processes without Partita load: two layers, a buffer, a nested input."""

from __future__ import annotations

from typing import Any

import torch


class NestedMlp(torch.nn.Module):
    """Two layers, a buffer that is used, and an input that is nested."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
        """Return the loss of ``x`` ``[batch, 16]``."""
        found = self.down(torch.relu(self.up(x))) * self.scale
        return ((found - batch["y"]) ** 2).mean()
