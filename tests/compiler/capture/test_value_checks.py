"""Checks that only raise pass while they are traced; other branches ask for values."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import FunctionType

import pytest
import torch
from tests.compiler.capture import small_models as small
from torch import Tensor, distributions, nn

from partita.compiler.capture.capture import capture
from partita.compiler.capture.value_checks import passing_checks
from partita.compiler.collection import collection_paused
from partita.compiler.errors import CaptureFailed
from partita.compiler.ir.program import op_name


def raising(wrong: Tensor) -> str:
    if wrong.any():
        raise ValueError(
            f"of type {type(wrong).__name__}, found {wrong.sum()} wrong values"
        )
    return "passed"


def raising_at_last(wrong: Tensor) -> str:
    if not wrong.any():
        return "passed"
    raise ValueError


def raising_for_one_of_two(wrong: Tensor, is_strict: bool = True) -> str:
    for _ in range(2):
        if is_strict and wrong.any():
            raise ValueError
    return "passed"


def raising_for_a_number(wrong: Tensor) -> str:
    if not wrong.logical_not().all().item():
        raise ValueError
    if bool(wrong.any()):
        raise ValueError
    return "passed"


CHECKS = [
    small.asserting,
    raising,
    raising_at_last,
    raising_for_one_of_two,
    raising_for_a_number,
]


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_passes_whatever_the_values_are(
    check: Callable[[Tensor], str],
) -> None:
    with passing_checks():
        for _ in range(20):  # Python calls otherwise what it has called often
            assert check(torch.tensor([True])) == "passed"
            assert check(torch.tensor([False])) == "passed"
    with pytest.raises((AssertionError, ValueError)):
        check(torch.tensor([True]))


def test_a_check_in_code_of_no_module_passes() -> None:
    check = FunctionType(raising_at_last.__code__, {})
    with passing_checks():
        assert check(torch.tensor([True])) == "passed"
        assert check(torch.tensor([False])) == "passed"


def test_branches_that_do_not_raise_go_by_values() -> None:
    with passing_checks():
        for value in (True, False):
            tensor = torch.tensor(value)
            assert (1 if tensor else 2) == (1 if value else 2)
            assert bool(tensor) is value
            assert tensor.item() is value
            assert (1 if tensor.item() else 2) == (1 if value else 2)
            assert (not tensor) is not value
            assert list(filter(None, [tensor])) == [tensor] * value


class Clamped(small.Scale):
    """Keeps what overflowed in range, as encoders of images do."""

    def __init__(self, asks: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.asks = asks

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.w
        if self.asks(x):
            x = x.clamp(-1, 1)
        return x.exp().sum()


OVERFLOWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: ~torch.isfinite(x).all(),
    lambda x: torch.logical_not(x.isfinite()).any(),
    lambda x: torch.isinf(x).any(),
    lambda x: torch.any(x.isnan()),
]


@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("asks", OVERFLOWS)
def test_values_are_finite_where_a_model_asks(
    asks: Callable[[Tensor], Tensor], precision: str | None
) -> None:
    x = torch.full((4,), 2.0)
    program = capture(Clamped(asks), (x,), {}, precision=precision).program
    assert not any("clamp" in op_name(node) for node in program.calls())


def test_so_they_are_without_a_gradient() -> None:
    with torch.inference_mode():
        model, x = Clamped(OVERFLOWS[0]), torch.ones(4)
        assert capture(model, (x,), {}, train=False).program.outputs


class Masked(small.Scale):
    """Asks after what it wrote into the places of the values that are not finite."""

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.w
        mask = torch.isnan(x)
        mask |= x > 0
        if mask.any():
            x = x.clamp(-1, 1)
        return x.exp().sum()


def test_what_is_written_to_is_not_known() -> None:
    with pytest.raises(CaptureFailed, match="by a tensor's values"):
        capture(Masked(), (torch.ones(4),), {})


def is_large(number: float) -> bool:
    return number > 1.5


def test_a_number_that_others_are_given_is_read() -> None:
    def check(x: Tensor) -> str:
        if not is_large(x.item()):
            raise ValueError("small")
        return "passed"

    with passing_checks():
        assert check(torch.tensor(2.0)) == "passed"
        with pytest.raises(ValueError, match="small"):
            check(torch.tensor(1.0))


class Dropping(small.Scale):
    """Leaves its layer out where a drawn number says so."""

    def __init__(self, drops: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.drops = drops

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.drops(torch.rand([])):
            return (x * self.w).sum()
        return (x * self.w * self.w).sum()


DROPS: list[Callable[[Tensor], Tensor]] = [lambda p: p < 0.1, lambda p: 0.1 >= p]


@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("drops", DROPS)
def test_a_branch_by_a_draw_is_told_as_one(
    drops: Callable[[Tensor], Tensor], precision: str | None
) -> None:
    with pytest.raises(CaptureFailed, match="by a number that is drawn") as caught:
        capture(Dropping(drops), (torch.ones(4),), {}, precision=precision)
    assert "test_value_checks.py:" in str(caught.value)


def test_what_was_asked_is_let_go() -> None:
    with passing_checks(), collection_paused():
        tensor = torch.tensor([False])
        asked = weakref.ref(tensor)
        assert raising(tensor) == "passed"
        del tensor
        assert asked() is None


class Likely(nn.Module):
    """The negative log-likelihood of a distribution, and of torch's own loss of one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return a scalar of ``x`` ``[batch, 4]`` and ``target`` ``[batch]``."""
        mean, spread = self.linear(x).unbind(-1)
        spread = nn.functional.softplus(spread)
        likely = distributions.Normal(mean, spread).log_prob(target)
        return nn.functional.gaussian_nll_loss(mean, target, spread) - likely.mean()


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_models_that_check_values_are_captured(precision: str | None) -> None:
    batch = torch.randn(4, 4), torch.randn(4)
    program = capture(Likely(), batch, {}, precision=precision).program
    assert program.trained


class Doubled(torch.autograd.Function):
    """Has a backward of its own, which an export would forget."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """Return twice ``x``."""
        return x * 2

    @staticmethod
    def backward(ctx: object, *grads: Tensor) -> Tensor:
        """Return twice the gradient."""
        return grads[0] * 2


class Writing(small.Scale):
    """Checks values, and writes to a tensor of its own."""

    def forward(self, x: Tensor) -> Tensor:
        """Return a scalar of ``x`` ``[batch, 4]``."""
        if x.max() >= 1e6:
            raise ValueError
        kept = torch.empty_like(x).bernoulli_(0.9)
        return (Doubled.apply(self.w * x) * kept).square().mean()


def test_a_trace_that_takes_writes_apart_passes_checks() -> None:
    assert capture(Writing(), (torch.randn(4, 4),), {}).program.trained


class Jointly(nn.Module):
    """The negative log-likelihood of points under a kernel that is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.width = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Return a scalar of ``x`` ``[points]`` and ``target`` ``[points]``."""
        near = torch.exp(-(x[:, None] - x).square() * self.width.exp())
        kernel = near + torch.eye(len(x))
        mean = torch.zeros(len(x))
        return -distributions.MultivariateNormal(mean, kernel).log_prob(target)


def test_a_distribution_does_not_branch_by_what_it_is_made_of() -> None:
    batch = torch.randn(4), torch.randn(4)
    model, program = Jointly(), capture(Jointly(), batch, {}).program
    feeds = {"width": model.width, "x": batch[0], "target": batch[1]}
    feeds["loss_scale"] = torch.ones(())
    values = [feeds.get(r.name, program.constants.get(r.name)) for r in program.inputs]
    with torch.no_grad():
        loss, gradient = program.graph_module(*values)
    wanted = model(*batch)
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach())
    torch.testing.assert_close(gradient, model.width.grad)
