"""Orders and choices that are drawn: the same on every rank, and as likely as asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.capture.eager_draws import LayoutFreeDraws
from partita.compiler.capture.random_numbers import seed_value


class Choosing(nn.Module):
    """Makes what a function chooses of the outputs of a layer."""

    def __init__(self, choose: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.choose = nn.Linear(8, 8), choose

    def forward(self, x: Tensor) -> Tensor:
        """Return the mean square of what is chosen."""
        return self.choose(self.layer(x)).square().mean()


def some(y: Tensor) -> Tensor:
    return y.gather(1, torch.multinomial(y.softmax(-1), 3))


def many(y: Tensor) -> Tensor:
    return y.gather(1, torch.multinomial(y.softmax(-1), 20, replacement=True))


def columns(y: Tensor) -> Tensor:
    return y[:, torch.multinomial(torch.arange(8.0), 4, replacement=False)]


def likely(y: Tensor) -> Tensor:
    chances = Categorical(logits=y)
    return chances.log_prob(chances.sample())


def ordered(y: Tensor) -> Tensor:
    return y[:, torch.randperm(8, dtype=torch.int32).long()] * torch.arange(8)


@pytest.mark.parametrize("choose", [some, many, columns, likely, ordered])
@pytest.mark.parametrize("where", ["dp=2,tp=2", "pp=2,dp=1"])
def test_ranks_and_microbatches_choose_alike(
    choose: Callable[[Tensor], Tensor], where: str
) -> None:
    model, x = Choosing(choose), torch.randn(8, 8)
    options = pt.Options(microbatches=2, time_limit=8)
    plan = pt.plan(model, x, mesh=where, options=options)
    report = pt.verify(model, x, plan=plan)
    assert report.ok, report


class Sampling(nn.Module):
    """Draws from weights, often."""

    def __init__(self, count: int, replacement: bool) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.count, self.replacement = count, replacement

    def forward(self, weights: Tensor) -> dict[str, Tensor]:
        """Return what is drawn of ``weights``, a row each."""
        drawn = torch.multinomial(weights, self.count, self.replacement)
        return {"loss": self.scale * 1.0, "drawn": drawn}


@pytest.mark.parametrize(("count", "again"), [(1, False), (1, True), (4, True)])
def test_choices_are_as_likely_as_their_weights(count: int, again: bool) -> None:
    weights = torch.tensor([0.0, 1.0, 3.0, 4.0]).expand(20_000 // count, 4).contiguous()
    model = Sampling(count, again)
    draws = capture(model, (weights,), {}).program.draws
    with LayoutFreeDraws(torch.tensor(seed_value(0, 0)), draws):
        drawn = model(weights)["drawn"]
    shares = torch.bincount(drawn.flatten(), minlength=4) / drawn.numel()
    torch.testing.assert_close(shares, weights[0] / 8, atol=0.02, rtol=0)


def test_what_may_not_come_again_does_not() -> None:
    weights = torch.tensor([[0.0, 1.0, 1.0, 4.0]])
    model = Sampling(3, replacement=False)
    draws = capture(model, (weights,), {}).program.draws
    with LayoutFreeDraws(torch.tensor(seed_value(0, 0)), draws):
        drawn = model(weights)["drawn"]
    assert sorted(drawn.flatten().tolist()) == [1, 2, 3]


def test_an_order_has_every_place_once() -> None:
    class Ordering(Choosing):
        def forward(self, x: Tensor) -> Tensor:
            self.order = torch.randperm(100)
            return super().forward(x) + self.order.sum()

    model, x = Ordering(lambda y: y), torch.randn(2, 8)
    draws = capture(model, (x,), {}).program.draws
    with LayoutFreeDraws(torch.tensor(seed_value(0, 0)), draws):
        model(x)
    assert sorted(model.order.tolist()) == list(range(100))
    assert model.order.tolist() != list(range(100))
