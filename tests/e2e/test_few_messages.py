"""What ranks send of parameters in pieces: as few messages as were asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.wide import plan_in_pieces, wide

import partita as pt
from partita.runtime.launch import launch
from partita.runtime.measure import Collective, count_collectives

pytestmark = pytest.mark.dist

NUM_STEPS, RATE = 3, 10.0


def train_on_rank(document: Any) -> tuple[list[float], list[Collective]]:
    """Train on this rank; return the losses and what was sent in the first step."""
    model, batch = wide()
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.SGD(program.parameters(), lr=RATE)
    losses: list[float] = []
    sent: list[Collective] = []
    for _ in range(NUM_STEPS):
        with count_collectives() as found:
            losses.append(float(program.step(batch)))
        sent = sent or found
        optimizer.step()
        optimizer.zero_grad()
    return losses, sent


def test_parameters_in_pieces_are_one_gather_and_one_scatter() -> None:
    model, batch = wide()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    wanted: list[float] = []
    for _ in range(NUM_STEPS):
        loss = model(batch)
        loss.backward()
        wanted.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    assert wanted[-1] < 0.9 * wanted[0]
    held = sum(p.numel() * p.element_size() for p in model.parameters())
    assert held < 25 * 2**20
    for losses, sent in launch(train_on_rank, 2, (plan_in_pieces().to_dict(),)):
        assert losses == pytest.approx(wanted, rel=1e-5)
        gather, of_loss, scatter = (each.payload_bytes for each in sent)
        assert gather == scatter == held
        assert of_loss < 64
