"""What is computed in parts of the batch and what whole, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.models.dropout import with_dropout
from torch import nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.errors import BadOptions
from partita.compiler.ir.sbp import Broadcast, Partial, Split
from partita.compiler.rules.table import default_rules
from partita.compiler.search.in_time import InTime


class OfLayer(nn.Module):
    """A layer, and a loss that a function makes of its output."""

    def __init__(self, loss: Callable[[torch.Tensor, nn.Linear], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.loss = loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[batch, 4]``."""
        return self.loss(self.layer(x), self.layer)


def refusal(model: nn.Module, *args: torch.Tensor, count: int = 2) -> str:
    with pytest.raises(BadOptions) as error:
        InTime(capture(model, args, {}).program, default_rules).choose(count)
    return str(error.value)


def test_parameters_are_whole_inputs_in_parts_and_gradients_add_up() -> None:
    program = capture(*with_dropout("mlp")).program
    chosen = InTime(program, default_rules).choose(2)
    assert chosen["parameter:up.weight"].results == (Broadcast(),)
    assert chosen["input:x"].results == (Split(0),)
    assert chosen["up/addmm/0"].results == (Split(0),)
    gradients = {key for key in chosen if key.startswith("up/") and "~grad/mm" in key}
    assert {chosen[key].results for key in gradients} == {(Partial(),)}


def test_what_counts_the_tokens_is_whole() -> None:
    program = capture(*with_dropout("gpt2")).program
    chosen = InTime(program, default_rules).choose(2)
    assert chosen["input:labels"].results == (Broadcast(),)
    assert chosen["input:input_ids"].results == (Split(0),)


class Tokens(nn.Module):
    """Predicts tokens from those before them, the sequence first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer = nn.Embedding(8, 4), nn.Linear(4, 8)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the cross entropy of all but the first ``tokens`` ``[batch, 6]``."""
        given = self.words(tokens[:, :-1]).transpose(0, 1)
        told = self.layer(given.tanh()).transpose(0, 1).flatten(0, 1)
        return nn.functional.cross_entropy(told, tokens[:, 1:].flatten())


def test_only_what_counts_the_tokens_of_an_input_takes_it_whole() -> None:
    model, tokens = Tokens(), torch.randint(0, 8, (4, 6))
    chosen = InTime(capture(model, (tokens,), {}).program, default_rules).choose(2)
    assert chosen["input:tokens"].results == (Broadcast(),)
    assert chosen["slice.Tensor/0"].results == (Split(0),), "given"
    assert chosen["words/embedding/0"].results == (Split(0),)
    assert chosen["tanh/0"].results == (Split(1),)
    options = pt.Options(microbatches=2)
    plan = pt.plan(model, tokens, mesh=pt.Mesh(tp=2), options=options)
    assert pt.verify(model, tokens, plan=plan).ok


def test_a_batch_norm_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))

    class Scored(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).square().sum()

    text = refusal(Scored(), torch.randn(8, 4))
    assert "'body.1/_native_batch_norm_legit_functional/0'" in text
    assert "test_in_time.py" in text
    assert "needs the whole batch: 'body.0/addmm/0'" in text


def test_what_is_only_returned_is_told() -> None:
    class Returning(OfLayer):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            y = self.layer(x)
            return {"loss": y.square().mean(), "first": y[0]}

    text = refusal(Returning(lambda y, _: y), torch.randn(8, 4))
    assert "'select.int/0'" in text
    assert "want 1, or a model that does not return 'first', for which alone" in text


def test_a_root_of_a_mean_is_refused() -> None:
    model = OfLayer(lambda y, _: y.square().mean().sqrt())
    text = refusal(model, torch.randn(8, 4))
    assert "'sqrt/0'" in text
    assert "needs the whole batch" in text
    assert "adds up over the microbatches" in text


def listed(y: torch.Tensor, _: nn.Linear) -> torch.Tensor:
    return torch.as_tensor(sum([y.square().mean(), y.abs().mean()]))


def accumulated(y: torch.Tensor, _: nn.Linear) -> torch.Tensor:
    return 0.0 + y.square().mean() - 0


@pytest.mark.parametrize("loss", [listed, accumulated])
def test_a_sum_may_begin_with_zero(
    loss: Callable[[torch.Tensor, nn.Linear], torch.Tensor],
) -> None:
    program = capture(OfLayer(loss), (torch.randn(4, 4),), {}).program
    chosen = InTime(program, default_rules).choose(2)
    added = [chosen[key].results for key in chosen if key.startswith(("add", "sub"))]
    assert added
    assert {*added} == {(Partial(),)}


def penalized(y: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    return y.square().mean() + torch.linalg.vector_norm(layer.weight)


def test_a_penalty_of_the_parameters_is_a_sum_of_shares() -> None:
    model = OfLayer(penalized)
    program = capture(model, (torch.randn(8, 4),), {}).program
    chosen = InTime(program, default_rules).choose(2)
    assert chosen["linalg_vector_norm/0"].results == (Broadcast(),)
    assert chosen["add.Tensor/0"].operands == (Partial(), Partial())


def test_no_share_is_taken_of_what_is_no_sum() -> None:
    model = OfLayer(lambda y, layer: penalized(y, layer).sqrt())
    text = refusal(model, torch.randn(8, 4))
    assert "'sqrt/0'" in text
    assert "needs the whole batch: 'add.Tensor/0', which it uses, adds up" in text


class Centred(nn.Module):
    """Takes from every sample a running mean that it is part of."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.mean = nn.Buffer(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss of ``x`` ``[batch, 4]``."""
        y = self.layer(x)
        self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return (y - self.mean).square().mean()


def test_what_a_buffer_needs_the_whole_batch_for_is_named() -> None:
    text = refusal(Centred(), torch.randn(8, 4))
    assert "'sub.Tensor/0'" in text
    assert "needs the whole batch: 'add.Tensor/0', which it uses, adds up" in text


@pytest.mark.parametrize("count", [3, 16])
def test_parts_that_are_not_equal_are_refused(count: int) -> None:
    model = OfLayer(lambda y, _: y.square().mean())
    assert refusal(model, torch.randn(8, 4), count=count) == (
        f"microbatches is {count}, which cuts dim 0 of no input into so many equal "
        "parts: x is f32[8, 4]; want a number that divides the batch, dim 0 of the "
        "inputs"
    )


def test_zeros_are_a_sum_of_zeros() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(6, 4))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return (self.table[at] * x).square().sum()

    args = torch.randn(8, 3, 4), torch.randint(6, (8, 3))
    program = capture(Positions(), args, {}).program
    chosen = InTime(program, default_rules).choose(2)
    (put,) = (s for key, s in chosen.items() if "index_put" in key)
    assert put.operands == (Partial(), Split(0), Split(0))
    assert put.results == (Partial(),)

    options = pt.Options(microbatches=2)
    plan = pt.plan(Positions(), *args, mesh=pt.Mesh(dp=2), options=options)
    report = pt.verify(Positions(), *args, plan=plan)
    assert report.ok, str(report)


def test_the_gradient_of_a_bounded_parameter_adds_up() -> None:
    model = OfLayer(lambda y, layer: (y.square() * layer.bias.clamp(max=0.1)).sum())
    program = capture(model, (torch.randn(4, 4),), {}).program
    chosen = InTime(program, default_rules).choose(2)
    (kept,) = (s for key, s in chosen.items() if "clamp" in key and "where" in key)
    assert kept.operands == (Broadcast(), Partial(), Partial())
    assert kept.results == (Partial(),)


LINEAR: dict[str, Callable[[torch.Tensor, nn.Linear], torch.Tensor]] = {
    "mean": lambda y, _: y.mean(),
    "weighted": lambda y, layer: (y * layer.bias).sum(),
    "used again": lambda y, layer: (layer(y).relu() + layer.bias).mean(),
    "added": lambda y, layer: (y + layer.bias).sum(),
}


@pytest.mark.parametrize("loss", LINEAR.values(), ids=LINEAR)
def test_a_gradient_that_is_the_same_for_every_batch_adds_up(
    loss: Callable[[torch.Tensor, nn.Linear], torch.Tensor],
) -> None:
    model, x = OfLayer(loss), torch.randn(8, 4)
    chosen = InTime(capture(model, (x,), {}).program, default_rules).choose(2)
    assert chosen["input:x"].results == (Split(0),)
    plan = pt.plan(model, x, mesh="dp=2", options=pt.Options(microbatches=2))
    report = pt.verify(model, x, plan=plan)
    assert report.ok, str(report)
