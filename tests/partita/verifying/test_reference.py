"""The eager module's own values: by name, with the model and its inputs untouched."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from partita.verifying.reference import Reference


class Counting(nn.Module):
    """Writes to a buffer and to its input, and leaves another buffer as it is."""

    steps: Tensor
    offset: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("offset", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        x += 1
        return (x * self.weight).sum() + self.offset


def test_all_that_a_step_makes_has_its_name() -> None:
    model, x = Counting(), torch.zeros(3)
    found = Reference.of(model, (x,), {}, None, True)
    values = {name: value.tolist() for name, value in found.values.items()}
    assert values == {"loss": 7.0, "buffer:steps": 1.0, "weight": [1.0, 1.0, 1.0]}
    assert found.kept_buffers.keys() == {"buffer:offset"}
    assert found.largest_gradient == 1.0
    assert (model.steps.item(), x.tolist(), model.weight.grad) == (0.0, [0.0] * 3, None)


def test_scaled_it_is_another_sample_of_its_roundings() -> None:
    model, x = Counting(), torch.full((3,), 0.1)
    once, other = (
        Reference.of(model, (x,), {}, None, True, scale=scale) for scale in (1.0, 1.1)
    )
    assert (model.weight == 2.0).all()
    distance = once.distance(other)
    assert 0.0 < distance["loss"] < 1e-6
    assert distance["weight"] < 1e-6, "a gradient is scaled back"
    again = Reference.of(model, (x,), {}, None, True, scale=1.1)
    assert other.distance(again) == dict.fromkeys(other.values, 0.0)


class LookedUp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(8, 4, sparse=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.rows(ids).square().sum()


def test_a_sparse_gradient_is_compared_with_all_its_zeros() -> None:
    found = Reference.of(LookedUp(), (torch.tensor([1, 3]),), {}, None, True)
    rows = found.values["rows.weight"].abs().sum(1) > 0
    assert rows.nonzero().flatten().tolist() == [1, 3]


class Following(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Parameter(torch.zeros(3), requires_grad=False)
        self.still = nn.Parameter(torch.zeros(3), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.slow.data = (self.slow.data + self.weight.data) / 2
        return super().forward(x + self.slow)


def test_what_the_forward_writes_to_a_parameter_is_a_value() -> None:
    found = Reference.of(Following(), (torch.zeros(3),), {}, None, True)
    assert found.values["buffer:slow"].tolist() == [1.0, 1.0, 1.0]
    assert found.kept_buffers.keys() == {"buffer:offset"}
    assert found.kept_parameters.keys() == {"buffer:still"}
    assert found.value("buffer:still") is not None
    assert found.value("buffer:weight") is None


def test_inference_has_outputs_alone() -> None:
    found = Reference.of(Counting(), (torch.zeros(3),), {}, None, False)
    assert {name.partition(":")[0] for name in found.values} == {"output", "buffer"}


def test_distances_are_relative_to_the_largest_value() -> None:
    one = Reference.of(Counting(), (torch.zeros(3),), {}, None, True)
    other = replace(one, values=one.values | {"loss": one.values["loss"] * 1.5})
    distances = one.distance(other)
    assert distances["loss"] == pytest.approx(0.5)
    assert distances["weight"] == 0.0
    tiny = torch.full((3,), 1e-9)
    assert one.scale("weight", tiny) == pytest.approx(1e-3), "of the largest gradient"


class Keeping(nn.Module):
    """Keeps what it has computed, as attention weights are kept to look at."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 2.0))
        self.kept: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.kept = [x * self.weight]
        return self.kept[0].sum()


def test_a_model_that_keeps_what_it_computed_is_called_again() -> None:
    model = Keeping()
    model(torch.ones(3))
    kept = model.kept[0]
    found = Reference.of(model, (torch.zeros(3),), {}, None, True)
    assert (found.values["loss"].item(), found.largest_gradient) == (0.0, 0.0)
    assert model.kept[0] is kept


class Repeating(Counting):
    """Writes to a buffer in a checkpoint."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._counted, x, use_reentrant=False).sum()

    def _counted(self, x: Tensor) -> Tensor:
        self.steps += 1
        return (x * self.weight).sin()


def test_buffers_are_what_the_forward_leaves() -> None:
    found = Reference.of(Repeating(), (torch.zeros(3),), {}, None, True)
    assert found.values["buffer:steps"].item() == 1.0
