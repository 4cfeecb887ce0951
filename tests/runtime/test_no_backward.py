"""What a program returns is a tensor; a backward of it says what to call instead."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from partita.compiler.errors import BadOptions
from partita.runtime.no_backward import Returned

Make = Callable[[Any], Any]
gradient: Any = torch.autograd.grad
mse_loss: Any = torch.nn.functional.mse_loss
scaler: Any = torch.amp.GradScaler("cpu")
BACKWARDS: list[Make] = [
    lambda x: x.backward(),
    lambda x: (x / 4).backward(),
    lambda x: scaler.scale(x).backward(),
    lambda x: mse_loss(x, torch.ones(())).backward(),
    lambda x: gradient(x, [torch.ones(1, requires_grad=True)]),
]


def returned() -> Returned:
    return Returned.of(torch.tensor(0.5))


@pytest.mark.parametrize("backward", BACKWARDS)
def test_it_says_what_to_call(backward: Make) -> None:
    with pytest.raises(BadOptions, match=r"^backward: .* Want program.step\(...\) and"):
        backward(returned())


def test_it_is_shown_and_pickled_as_a_plain_tensor() -> None:
    value = returned()
    assert (f"{value:.2f}", repr(value)) == ("0.50", "tensor(0.5000)")
    assert (float(value), value.numpy().item()) == (0.5, 0.5)
    assert type(pickle.loads(pickle.dumps(value))) is torch.Tensor
    assert copy.deepcopy(value) == value
