"""Models that draw random numbers: the same ones in eager mode and on every rank."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from tests.models.searched import searched
from tests.slow import slow
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.capture.eager_draws import LayoutFreeDraws
from partita.compiler.capture.random_numbers import seed_value
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.program import InputKind
from partita.one_mesh.planner import Planner
from partita.verifying.verification import Verifier


class Noisy(nn.Module):
    """Draws in every way that is known."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.3)
        self.alpha = nn.AlphaDropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar of ``x`` ``[4, 8]``."""
        y = self.drop(self.linear(x)) + torch.randn_like(x) + torch.rand(4, 8)
        y = y * torch.bernoulli(torch.full((4, 8), 0.5)) + torch.randint(2, 5, (4, 8))
        y = y + torch.empty(4, 8).uniform_(-1, 1) * torch.empty(4, 8).normal_(1, 2)
        y = y + torch.empty(4, 8).exponential_(2.0)
        y = y + torch.randn(4, 8, generator=None) * torch.rand(4, 8, generator=None)
        y = y * torch.randint(2, 5, (4, 8), generator=None)
        y = y + nn.functional.gumbel_softmax(y, tau=0.5)
        y = y[torch.randperm(4)] + functional.rrelu(y) * functional.rrelu(y - 1, 0, 1)
        y = functional.rrelu(y, training=True) + functional.rrelu_(-y, 0.1, 0.2, True)
        y = torch.normal(y, 0.5) + torch.normal(1.0, y.abs()) + torch.normal(y, y.abs())
        y = y + torch.normal(1.0, 2.0, (4, 8))
        y = y + torch.empty(4, 8).log_normal_(0.0, 0.5) + torch.randint_like(y, 2, 5)
        y = y * torch.randint_like(y, 4, dtype=torch.int64)
        torch.rand(3)  # drawn, but used by nobody
        return (self.alpha(y) * self.linear.weight[:4]).sum()


def noisy() -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    return Noisy().train(), {"x": torch.randn(4, 8)}


def gpt2_in_training() -> tuple[nn.Module, dict[str, Any]]:
    """Return GPT-2 as its config makes it: every dropout at 0.1."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=1, n_embd=32, n_head=4, vocab_size=64, n_positions=16
    )
    ids = torch.randint(0, 64, (4, 8))
    model = transformers.GPT2LMHeadModel(config).train()
    return model, {"input_ids": ids, "labels": ids}


class Again(Noisy):
    """Draws in a checkpoint, and between two layers of a recurrent one."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(8, 8, num_layers=2, dropout=0.3, bidirectional=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar of ``x`` ``[4, 8]``."""
        x = checkpoint(self._dropped, x, use_reentrant=False)
        return super().forward(self.cells(x.unsqueeze(0))[0][0, :, 8:])

    def _dropped(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.drop(torch.tanh(self.linear(x))))


def again() -> tuple[nn.Module, dict[str, Any]]:
    torch.manual_seed(0)
    return Again().train(), {"x": torch.randn(4, 8)}


@pytest.mark.parametrize("build", [noisy, again, slow(gpt2_in_training)])
@pytest.mark.parametrize(
    "mesh", ["tp=2", pytest.param("dp=2,tp=2", marks=pytest.mark.slow)]
)
def test_every_plan_draws_what_one_process_draws(build: Any, mesh: str) -> None:
    model, kwargs = build()
    options = pt.Options(hardware="cpu-gloo-free", time_limit=3)
    planner = Planner.of(model, (), kwargs, pt.Mesh.parse(mesh), options)
    draws = planner.captured.program.draws
    verifier = Verifier.of(model, (), kwargs, draws=draws)
    for plan in (searched(planner), planner.random(0), planner.random(1)):
        report = verifier.verify_captured(planner.captured, plan)
        assert report.ok, str(report)


def test_eager_numbers_depend_on_seed_and_step_alone() -> None:
    model, kwargs = noisy()
    draws = capture(model, (), kwargs).program.draws
    losses: list[float] = []
    for seed, step in [(0, 0), (0, 0), (0, 1), (1, 0)]:
        torch.manual_seed(seed + 100 * step)
        with LayoutFreeDraws(torch.tensor(seed_value(seed, step)), draws):
            losses.append(float(model(**kwargs).detach()))
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3


def test_a_program_that_draws_takes_a_seed_and_nothing_else_does() -> None:
    model, kwargs = noisy()
    kinds = [role.kind for role in capture(model, (), kwargs).program.inputs]
    assert kinds.count(InputKind.SEED) == 1
    kinds = [role.kind for role in capture(model.eval(), (), kwargs).program.inputs]
    assert kinds.count(InputKind.SEED) == 1  # rand is rand in eval mode too


class Counting(nn.Module):
    """Draws counts."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a scalar of ``x`` and counts."""
        return (self.linear(x) + torch.poisson(x.abs())).sum()


def test_a_draw_that_depends_on_the_layout_is_refused() -> None:
    with pytest.raises(CaptureFailed, match=r"draws.py:\d+: aten.poisson"):
        capture(Counting(), (torch.randn(4, 4),), {})


class Seeded(nn.Linear):
    """Draws from a generator that it has for itself."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return a scalar of ``input``."""
        own = torch.Generator().manual_seed(0)
        return (super().forward(input) * torch.randn(4, 4, generator=own)).sum()


def test_a_generator_of_the_models_own_is_refused() -> None:
    with pytest.raises(CaptureFailed, match="a generator of the model's own"):
        capture(Seeded(4, 4), (torch.randn(4, 4),), {})


def test_a_model_that_draws_otherwise_than_its_capture_is_told_apart() -> None:
    model, kwargs = noisy()
    draws = capture(model, (), kwargs).program.draws
    with (
        pytest.raises(CaptureFailed, match="which its capture does not draw"),
        LayoutFreeDraws(torch.tensor(0), draws[:-1]),
    ):
        model(**kwargs)
