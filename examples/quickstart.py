"""Plan a model for two ranks, look at the plan, and check it.

.venv/bin/python examples/quickstart.py
"""

import torch
from torch import nn

import partita as pt


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(512, 2048)
        self.down = nn.Linear(2048, 512)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self.down(torch.relu(self.up(x))), target)


model = Mlp()
x, target = torch.randn(64, 512), torch.randn(64, 512)
plan = pt.plan(model, x, target, mesh=pt.Mesh(ranks=2))
print(plan)
print(pt.verify(model, x, target, plan=plan))
