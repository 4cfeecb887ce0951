"""Ranks with unlike plans all say so, before one waits for another."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import nn

import partita as pt
from partita.compiler.errors import BadPlan
from partita.runtime.launch import launch

pytestmark = pytest.mark.dist


class Tower(nn.Module):
    """Layers, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[4, 8]``."""
        return self.layers(x).square().mean()


def compile_own(mesh: str, asked: list[dict[str, Any]]) -> str:
    """Compile a plan that this rank makes for itself; return what it is told."""
    options = pt.Options(hardware="cpu-gloo", **asked[int(os.environ["RANK"])])
    plan = pt.plan(Tower(), torch.ones(4, 8), mesh=mesh, options=options)
    with pytest.raises(BadPlan) as caught:
        pt.compile(Tower(), plan)
    return str(caught.value)


UNLIKE_PINS = [{}, {"pins": {"layers.0.weight": "S(0)"}}]
UNLIKE_COUNTS = [{"microbatches": 2}, {"microbatches": 4}]


@pytest.mark.parametrize(
    ("mesh", "asked", "what"),
    [("dp=2", UNLIKE_PINS, "nodes"), ("pp=2", UNLIKE_COUNTS, "schedule")],
)
def test_all_ranks_are_told(mesh: str, asked: list[dict[str, Any]], what: str) -> None:
    told = launch(compile_own, 2, (mesh, asked))
    assert told[0] == told[1]
    assert told[0].startswith("rank 1 has another plan than rank 0, with other ")
    assert what in told[0].partition(";")[0]
    assert "pt.parallelize" in told[0]
