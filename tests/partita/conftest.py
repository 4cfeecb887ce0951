"""A saved plan and a target, for the tests of the command line and the page."""

import shutil
from pathlib import Path

import pytest

from partita.compiler.plan.plan import Plan

SAVED = Path(__file__).parents[1] / "compiler" / "plan" / "two_layers.json"

MODEL = """\
import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 8)

    def forward(self, x, y):
        return ((self.down(torch.relu(self.up(x))) - y) ** 2).mean()


def build():
    torch.manual_seed(0)
    return Mlp(), (torch.randn(8, 16),), {"y": torch.randn(8, 8)}
"""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return the file of the small plan."""
    path = tmp_path / "small.plan.json"
    shutil.copy(SAVED, path)
    return path


@pytest.fixture
def plan() -> Plan:
    """Return the small plan."""
    return Plan.load(SAVED)


@pytest.fixture
def target(tmp_path: Path) -> str:
    """Return the TARGET of a two-layer perceptron."""
    path = tmp_path / "mlp_for_cli.py"
    path.write_text(MODEL)
    return f"{path}:build"
