"""What errors are relative to."""

from __future__ import annotations

from math import inf, isfinite, nan

import pytest
import torch
from tests.models import zoo
from torch import nn

import partita as pt
from partita.verifying.relative_error import relative_error
from partita.verifying.verification import Verifier

TP = pt.Mesh(tp=2)


@pytest.mark.parametrize(
    ("found", "wanted", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0, nan], [1.0, 2.0], inf),
        ([1.0, nan], [1.0, nan], inf),
        ([inf, 1.0], [inf, 1.0], 0.0),
        ([1.0], [1.0, 2.0], inf),
        ([], [], 0.0),
    ],
)
def test_relative_error(found: list[float], wanted: list[float], error: float) -> None:
    assert relative_error(torch.tensor(found), torch.tensor(wanted), 2.0) == error


def test_small_gradients_are_measured_against_the_largest() -> None:
    reference = Verifier.of(*zoo.mlp()).double
    tiny, largest = torch.tensor([1e-9]), reference.largest_gradient
    assert reference.scale("up.bias", tiny) == 1e-3 * largest
    assert reference.scale("loss", tiny) == pytest.approx(1e-9)
    assert reference.scale("output:y", tiny) == pytest.approx(1e-9)
    assert isfinite(1 / reference.scale("loss", torch.zeros(2)))


class Centered(nn.Module):
    """A batch norm whose running mean is of inputs that are centered already."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norms = nn.Sequential(nn.BatchNorm1d(4), nn.BatchNorm1d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean fourth power of ``x`` ``[8, 4]``, normalized twice."""
        return self.norms(self.linear(x)).pow(4).mean()


def test_a_mean_that_is_rounding_errors_goes_by_the_variance_beside_it() -> None:
    torch.manual_seed(0)
    model, x = Centered(), torch.randn(8, 4)
    verifier = Verifier.of(model, (x,), {})
    mean = verifier.double.values["buffer:norms.1.running_mean"]
    assert 0.0 < mean.abs().max() < 1e-15

    pins = {"x": "(S(0),)"}
    plan = pt.plan(model, x, mesh=TP, options=pt.Options(pins=pins))
    assert verifier.verify(plan).ok
    scale = verifier.double.scale("buffer:norms.1.running_mean", mean)
    assert 5e-4 < scale < 2e-3


class Rooted(nn.Module):
    """Has a gradient that is NaN where an input is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a mean over ``x`` ``[2, 4]``."""
        return self.second(self.first(x)).norm(dim=1).sqrt().mean()


@pytest.mark.parametrize("mesh", ["dp=2", "pp=2,dp=1"])
def test_that_the_model_itself_makes_nan_is_told(mesh: str) -> None:
    model, x = Rooted(), torch.zeros(2, 4)
    plan = pt.plan(model, x, mesh=pt.Mesh.parse(mesh))
    report = pt.verify(model, x, plan=plan)
    assert not report.ok
    assert report.divergence == (
        "the model itself makes NaN of 'first.weight', which nothing equals; verify "
        "it with other inputs or other values"
    )
