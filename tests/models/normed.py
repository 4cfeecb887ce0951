"""A batch norm between convolutions."""

from __future__ import annotations

import torch
from torch import nn


class Normed(nn.Module):
    """A batch norm between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of images."""
        return self.last(self.norm(self.first(x)).relu()).square().mean()
