"""Training that stops and goes on from its checkpoint is as training that never did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.nn import functional as F

import partita as pt
from partita.runtime.launch import launch

pytestmark = pytest.mark.dist


class Model(nn.Module):
    """Layers of which one is frozen, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.mid = nn.Linear(8, 16), nn.Linear(16, 16)
        self.down = nn.Linear(16, 4)
        self.mid.weight.requires_grad_(False)
        self.spare = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[4, 8]`` and ``y`` ``[4, 4]``."""
        hidden = F.dropout(self.up(x).tanh(), 0.2, self.training)
        return F.mse_loss(self.down(self.mid(hidden).tanh()), y)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(4, 8, generator=generator), torch.randn(
        4, 4, generator=generator
    )


def train(document: dict[str, Any], folder: str, start: int, steps: int) -> list[float]:
    """Train from step ``start`` on, from the checkpoint unless that is 0; save."""
    program = pt.compile(Model(), pt.Plan.from_dict(document))
    optimizer = torch.optim.AdamW(program.parameters(), lr=0.1)

    def state() -> dict[str, Any]:
        return {
            "model": program.state_dict(),
            "optimizer": program.optimizer_state_dict(optimizer),
        }

    if start:
        found = state()
        load(found, checkpoint_id=folder)
        program.load_state_dict(found["model"])
        program.load_optimizer_state_dict(optimizer, found["optimizer"])
        program.num_steps = start
    losses: list[float] = []
    for _ in range(steps):
        losses.append(program.step(*batch()).item())
        optimizer.step()
        optimizer.zero_grad()
    save(state(), checkpoint_id=folder)
    return losses


def planned(mesh: str) -> dict[str, Any]:
    options = pt.Options(hardware="cpu-gloo-free", microbatches=1)
    return pt.plan(Model(), *batch(), mesh=mesh, options=options).to_dict()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_it_goes_on_where_it_stopped_also_on_another_mesh(tmp_path: Path) -> None:
    alone, folder = str(tmp_path / "alone"), str(tmp_path / "ranks")
    want = train(planned("dp=1"), alone, 0, 5)
    found = [
        launch(train, 2, (planned(mesh), folder, start, steps), timeout_s=110.0)
        for mesh, start, steps in (("pp=2", 0, 2), ("tp=2", 2, 1), ("pp=2", 3, 2))
    ]
    for rank in range(2):
        losses = [loss for losses in found for loss in losses[rank]]
        assert losses == pytest.approx(want, rel=1e-5)
    states = [{"model": Model().state_dict()} for _ in range(2)]
    for state, path in zip(states, (alone, folder), strict=True):
        load(state, checkpoint_id=path, no_dist=True)
    torch.testing.assert_close(states[0], states[1], rtol=1e-5, atol=1e-6)
