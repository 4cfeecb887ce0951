"""Linear layers whose weights take longer to copy than a message takes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import partita as pt

WIDTH, ROWS = 1024, 512
_IN_PIECES = "storage=(S(0)); gradient=(S(0)); optimizer=(S(0)); use=(B)"


class Wide(nn.Module):
    """Three layers of 4 MiB each."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        """Return the loss of ``x`` ``[batch, width]``."""
        return self.layers(x).square().mean()


def wide() -> tuple[Wide, Tensor]:
    """Return the model and its batch, the same in every process."""
    torch.manual_seed(0)
    return Wide(), torch.randn(ROWS, WIDTH)


def plan_in_pieces() -> pt.Plan:
    """Return a plan for two ranks, each of which stores half of every parameter."""
    model, batch = wide()
    options = pt.Options(pins={"x": "S(0)", "layers.*": _IN_PIECES})
    return pt.plan(model, batch, mesh=pt.Mesh(dp=2), options=options)
