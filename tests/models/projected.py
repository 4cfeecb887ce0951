"""A model whose products share inputs, and plans that join them."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn

import partita as pt

WIDTH, HIDDEN = 32, 64
JOINED = (("q/addmm/0", "k/addmm/0"), ("gate/mm/0", "up/mm/0"))


class Projected(nn.Module):
    """Products with a bias and without, of one input each; a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a loss."""
        x = torch.tanh(self.q(x)) * self.k(x)
        return self.down(torch.sigmoid(self.gate(x)) * self.up(x)).square().mean()


def built(rows: int = 16) -> tuple[nn.Module, torch.Tensor]:
    """Return the model and a batch, the same each time."""
    torch.manual_seed(0)
    return Projected(), torch.randn(rows, WIDTH)


@lru_cache
def planned(mesh: str = "dp=1", hardware: str = "h100-dgx", rows: int = 16) -> pt.Plan:
    """Return a plan of it that joins what it may."""
    model, x = built(rows)
    parsed = pt.Mesh.parse(mesh)
    pins = {"x": "(B,)", "down.weight": "(S(1),) use=(S(1),)"}
    pins |= {f"{name}.weight": "(S(0),) use=(S(0),)" for name in ("gate", "up")}
    pins = pins if "tp" in parsed.names else {}
    options = pt.Options(hardware=hardware, fuse=True, pins=pins)
    return pt.plan(model, x, mesh=parsed, options=options)
