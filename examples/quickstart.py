"""Plan a model for two ranks, look at the plan, and check it.

$ .venv/bin/python examples/quickstart.py
Mlp on mesh ranks=2: 2 ranks, hardware cpu-gloo, training
...
up.weight    x1  f32[2048, 512]  (S(0),)  same       same      same
...
verify: ok: 5 tensors, largest error 7.82e-16 in double precision, 2.97e-07 in ...
...
"""

import torch
from torch import nn

import partita as pt


class Mlp(nn.Module):
    """Two linear layers and a squared error."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(512, 2048)
        self.down = nn.Linear(2048, 512)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch."""
        return nn.functional.mse_loss(self.down(torch.relu(self.up(x))), target)


torch.manual_seed(0)
model = Mlp()
x, target = torch.randn(64, 512), torch.randn(64, 512)
plan = pt.plan(model, x, target, mesh=pt.Mesh(ranks=2))
print(plan)
print(pt.verify(model, x, target, plan=plan))
