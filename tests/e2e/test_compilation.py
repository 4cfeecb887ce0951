"""Programs compiled as a whole train as they do op by op, in every way to run them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita as pt
from partita.runtime.launch import launch

pytestmark = pytest.mark.dist

NUM_STEPS = 2


class Normed(nn.Module):
    """Buffers that a step writes, and numbers that ranks draw by where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.3)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the loss and the output, which the loss alone does not need."""
        out = self.down(self.drop(torch.relu(self.norm(self.up(x)))))
        return {"loss": nn.functional.mse_loss(out, y), "out": out}


class Layers(nn.Module):
    """Layers to cut between; what the forward saves is transposed in places."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4))
        first, second, third = sizes
        self.layers = nn.Sequential(
            first, nn.GELU(), second, nn.Dropout(0.2), nn.GELU(), third
        )

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the loss and the output."""
        out = self.layers(x)
        return {"loss": nn.functional.mse_loss(out, y), "out": out}


class Tied(nn.Module):
    """A vocabulary that is split by rows, its tied head too."""

    num_words, length = 16, 6

    def __init__(self) -> None:
        super().__init__()
        self.table, self.mid = nn.Embedding(self.num_words, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, self.num_words, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the loss and the scores."""
        scores = self.head(self.table(x) + self.mid(self.table(x)))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten())
        return {"loss": loss, "scores": scores}


class LargeTied(Tied):
    """So many words that their scores are laid out with gaps (aligned_rows.py)."""

    num_words, length = 2 * 1027, 64


class Pictures(nn.Module):
    """Convolutions, what they take laid out by channels; ranks swap edges of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the loss and the output."""
        hidden = torch.relu(self.norm(self.first(x)))
        out = self.head(torch.relu(self.second(hidden)).mean((2, 3)))
        return {"loss": nn.functional.mse_loss(out, y), "out": out}


class Experts(nn.Module):
    """Rows by the expert that scores best, of which each rank may have some."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.up = nn.Parameter(torch.randn(4, 8, 16))
        self.down = nn.Parameter(torch.randn(4, 16, 4))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Return the loss and what the experts make, each row by its score."""
        score, expert = self.router(x).softmax(-1).max(-1)
        order = expert.argsort()
        ends = torch.histc(expert.float(), 4, 0, 3).cumsum(0).to(torch.int32)
        hidden = nn.functional.grouped_mm(x[order], self.up, offs=ends).relu()
        made = nn.functional.grouped_mm(hidden, self.down, offs=ends)
        out = torch.empty_like(made).index_copy(0, order, made) * score.unsqueeze(1)
        return {"loss": nn.functional.mse_loss(out, y), "out": out}


@dataclass(frozen=True)
class Case:
    model: Callable[[], nn.Module]
    mesh: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])

    def built(self) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
        torch.manual_seed(0)
        model = self.model().train()
        if isinstance(model, Tied):
            x, y = torch.randint(model.num_words, (2, 4, model.length))
            return model, (x, y)
        if self.model is Pictures:
            return model, (torch.randn(8, 3, 8, 8), torch.randn(8, 4))
        return model, (torch.randn(8, 8), torch.randn(8, 4))

    def planned(self) -> dict[str, Any]:
        model, args = self.built()
        mesh, options = pt.Mesh.parse(self.mesh), pt.Options(**self.options)
        return pt.plan(model, *args, mesh=mesh, options=options).to_dict()


ROWS = {"x": "S(0)"}
CASES = {
    "one rank": Case(Normed, "dp=1"),
    "data parallel": Case(Normed, "dp=2", {"pins": ROWS}),
    "vocabulary": Case(Tied, "tp=2", {"pins": {"table.weight": "S(0)"}}),
    "large vocabulary": Case(LargeTied, "tp=2", {"pins": {"table.weight": "S(0)"}}),
    "large vocabulary by rows": Case(LargeTied, "dp=2", {"pins": ROWS}),
    "storage": Case(Layers, "dp=2", {"pins": ROWS | {"layers.2.weight": "S(0)"}}),
    "microbatches": Case(Layers, "dp=2", {"pins": ROWS, "microbatches": 2}),
    "pipeline": Case(Layers, "pp=2", {"microbatches": 2}),
    "experts": Case(Experts, "ep=2", {"pins": {"up": "S(0)", "down": "S(0)"}}),
    "pictures by rows": Case(Pictures, "dp=2", {"pins": {"x": "S(2)"}}),
    "pictures in stages": Case(Pictures, "pp=2"),
}
QUICK = ("data parallel", "large vocabulary")  # others compile for long, too


def train(name: str, plan: dict[str, Any], compilation: str) -> dict[str, Any]:
    """Return what this rank has after a short training, and before the last update."""
    model, args = CASES[name].built()
    found = pt.Plan.from_dict(plan)
    program = pt.compile(model, found, device="cpu", compilation=compilation)
    optimizer = torch.optim.SGD(program.parameters(), lr=0.1)
    losses: list[Tensor] = []
    gradients: dict[str, Tensor | None] = {}
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        losses += [program.step(*args), program.step(*args)]  # gradients add up
        gradients = {key: p.grad for key, p in program.named_parameters()}
        optimizer.step()
    buffers = dict(program.named_buffers())
    return {"losses": losses, "gradients": gradients, "buffers": buffers} | {
        "outputs": program(*args)
    }


def in_both_ways(name: str, plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [train(name, plan, compilation) for compilation in ("eager", "whole")]


@pytest.mark.parametrize(
    "name",
    [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)
def test_a_program_compiled_as_a_whole_trains_as_it_does_op_by_op(name: str) -> None:
    case = CASES[name]
    num_ranks = pt.Mesh.parse(case.mesh).size
    for eager, whole in launch(
        f"{__file__}:in_both_ways", num_ranks, (name, case.planned())
    ):
        assert eager["gradients"]
        torch.testing.assert_close(whole, eager, rtol=1e-5, atol=1e-6)
