"""Models in other precisions than single, and what they make of their own."""

from __future__ import annotations

import pytest
import torch
from tests.models import zoo
from torch import Tensor, nn

import partita as pt
from partita.compiler.errors import CaptureFailed
from partita.one_mesh.planner import Planner
from partita.verifying.precision import ConstantDtypes
from partita.verifying.verification import Verifier, verify

GRID, TP = pt.Mesh(dp=2, tp=2), pt.Mesh(tp=2)


def test_own_precision_may_be_off_as_far_as_the_original() -> None:
    model, args, _ = zoo.mlp()
    model = model.bfloat16()
    args = tuple(x.bfloat16() for x in args)
    plan = pt.plan(model, *args, mesh=TP)
    report = verify(model, *args, plan=plan)
    assert report.ok, str(report)
    assert max(report.tolerances.values()) > 1e-4
    assert report.tolerances["loss"] >= 1e-5


class Summing(nn.Module):
    """Adds rows to others, which torch does in one dtype alone."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x: Tensor, to: Tensor) -> Tensor:
        """Return a mean over sums of rows of ``x`` ``[n, 8]``."""
        return torch.zeros(4, 8).index_add_(0, to, self.up(x)).square().mean()


def test_a_model_that_autocast_breaks_is_told_of() -> None:
    model, x, to = Summing(), torch.randn(8, 8), torch.arange(8) % 4
    half = pt.Options(precision="bfloat16")
    plan = pt.plan(model, x, to, mesh=pt.Mesh(dp=2), options=half)
    told = r"Summing fails when .* under torch.autocast to bfloat16.*index_add"
    with pytest.raises(CaptureFailed, match=told):
        verify(model, x, to, plan=plan)


class Normed(nn.Module):
    """A norm whose epsilon follows from its dtype, or is rounded to it."""

    def __init__(self, eps: float | None) -> None:
        super().__init__()
        self.norm, self.out = nn.RMSNorm(8, eps), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return a mean over ``x`` ``[batch, 8]``."""
        return self.out(self.norm(1e-3 * x)).square().mean()


@pytest.mark.parametrize("eps", [None, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_epsilon_that_follows_from_the_dtype_agrees(
    eps: float | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    model, x = Normed(eps).to(dtype), torch.randn(4, 8, dtype=dtype)
    report = verify(model, x, plan=pt.plan(model, x, mesh=TP))
    assert report.ok, str(report)


class Stabilized(nn.Module):
    """Adds what is small in its dtype, and noise that no zero was drawn for."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        """Return a mean over ``x`` ``[batch, 8]``."""
        none, one = torch.zeros((), dtype=x.dtype), torch.ones((), dtype=x.dtype)
        noise: Tensor = torch.distributions.Gumbel(none, one).rsample(x.shape)
        return (self.out(x + noise) + 1e6 * torch.finfo(x.dtype).eps).square().mean()


def test_what_a_dtype_can_hold_is_that_of_the_model() -> None:
    torch.manual_seed(0)
    model, x = Stabilized(), torch.randn(4, 8)
    report = verify(model, x, plan=pt.plan(model, x, mesh=TP))
    assert report.ok, str(report)
    assert isinstance(torch.finfo, type)


def test_an_input_that_wants_a_gradient_is_an_input() -> None:
    model, x = Normed(None), torch.randn(4, 8, requires_grad=True)
    assert verify(model, x, plan=pt.plan(model, x, mesh=TP)).ok
    assert x.grad is None


def test_bfloat16_is_allowed_roundings_of_its_own() -> None:
    torch.manual_seed(0)
    model, (x, target), _ = zoo.mlp()
    model, batch = model.bfloat16(), (x.bfloat16(), target.bfloat16())
    planner = Planner.of(model, batch, {}, GRID, pt.Options())
    verifier = Verifier.of(model, batch, {})
    for seed in range(4):
        report = verifier.verify_captured(planner.captured, planner.random(seed))
        assert report.ok, str(report)
        assert min(report.tolerances.values()) == 4 * torch.finfo(torch.bfloat16).eps


class Constants(nn.Module):
    """Scales by constants that no float32 holds exactly, made in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = torch.arange(4) / 3  # no buffer
        self.scales = [torch.full((4,), 0.1)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean square of ``x`` ``[2, 4]``, scaled."""
        x = x * torch.sin(self.scale) + self.scales[0].exp()
        y = self.linear(x) / torch.sqrt(torch.tensor(32, dtype=torch.float) * 3)
        y = y * torch.tensor(0.1) + torch.as_tensor([0.3] * 4)
        y = y * torch.tensor([0.1, 0.2] * 2, dtype=torch.float64)
        y = y * torch.tensor(0.3, dtype=x.dtype)
        return (y * x.new_tensor(0.7)).square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_constants_are_as_exact_in_the_reference_as_in_the_plan(
    dtype: torch.dtype,
) -> None:
    model, x = Constants().to(dtype), torch.randn(2, 4, dtype=dtype)
    report = pt.verify(model, x, plan=pt.plan(model, x, mesh=pt.Mesh(tp=2)))
    assert report.ok, str(report)


class Weighted(nn.Linear):
    """Gives one class less weight, by a number written to an element."""

    def forward(self, input: Tensor) -> Tensor:
        weights = torch.ones(4)
        weights[-1] = 0.1
        target = torch.tensor([1, 3])
        return nn.functional.cross_entropy(super().forward(input), target, weights)


def test_a_number_that_is_written_is_as_exact_in_the_reference() -> None:
    torch.manual_seed(0)
    model, x = Weighted(4, 4), torch.randn(2, 4)
    report = pt.verify(model, x, plan=pt.plan(model, x, mesh=pt.Mesh(tp=2)))
    assert report.ok, str(report)


class Sampled(nn.Module):
    """Gives constants to functions that want all of one dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.prelu(self.linear(x), torch.tensor([0.3]))
        at = torch.tensor([[[[0.1, -0.2], [0.4, 0.3]]]])
        return nn.functional.grid_sample(y[None, None], at, align_corners=False).sum()


def test_constants_of_functions_that_want_one_dtype_agree() -> None:
    torch.manual_seed(0)
    model, x = Sampled(), torch.randn(4, 4)
    report = pt.verify(model, x, plan=pt.plan(model, x, mesh="dp=2"))
    assert report.ok, report


@pytest.mark.parametrize(("other", "times"), [(torch.float64, 1), (torch.float32, 2)])
def test_what_fails_on_one_dtype_is_not_tried_again(
    other: torch.dtype, times: int
) -> None:
    tried: list[torch.dtype] = []

    def refuse(*given: torch.Tensor) -> None:
        tried.append(given[1].dtype)
        raise RuntimeError("no such shape")

    given = torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=other)
    with pytest.raises(RuntimeError, match="no such shape"):
        ConstantDtypes([]).__torch_function__(refuse, (), given)
    assert tried == [other, torch.float64][:times]


class FakeQuantized(nn.Linear):
    """Rounds what it made, by an op that takes no doubles for its scale."""

    def forward(self, input: Tensor) -> Tensor:
        made, scale = super().forward(input), torch.full((4,), 0.01)
        zero = torch.zeros(4, dtype=torch.int32)
        quantized = torch.fake_quantize_per_channel_affine(made, scale, zero, 1, 0, 255)
        return quantized.square().sum()


def test_an_op_that_takes_no_doubles_is_told_of() -> None:
    model, x = FakeQuantized(4, 4), torch.randn(2, 4)
    plan = pt.plan(model, x, mesh=pt.Mesh(tp=2))
    told = "FakeQuantized fails in double precision.*Scale must be"
    with pytest.raises(CaptureFailed, match=told):
        pt.verify(model, x, plan=plan)
