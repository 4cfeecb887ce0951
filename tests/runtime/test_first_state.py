"""An optimizer that has not stepped shows its state, and has not stepped for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from partita.compiler.errors import BadOptions
from partita.runtime.first_state import first_state

Optimizer = Callable[..., torch.optim.Optimizer]


@pytest.fixture
def parameters() -> list[nn.Parameter]:
    """Two parameters, of which the first is trained."""
    return [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (torch.optim.AdamW, {"step", "exp_avg", "exp_avg_sq"}),
        (torch.optim.Adam, {"step", "exp_avg", "exp_avg_sq"}),
        (torch.optim.RMSprop, {"step", "square_avg"}),
        (torch.optim.SGD, set()),
    ],
)
def test_it_is_that_of_no_step(
    kind: Optimizer, keys: set[str], parameters: list[nn.Parameter]
) -> None:
    optimizer = kind(parameters, lr=0.1, weight_decay=0.5)
    first, second = parameters
    second.grad = torch.full((2,), 7.0)
    with first_state(optimizer, [first]):
        assert set(optimizer.state[first]) == keys
        assert not optimizer.state.get(second)
        for value in optimizer.state[first].values():
            assert not value.any()
    assert not optimizer.state
    assert first.tolist() == [1.0] * 3
    assert second.tolist() == [1.0] * 2
    assert first.grad is None
    assert second.grad.tolist() == [7.0] * 2
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.1, 0.5)


def test_state_that_is_there_stays(parameters: list[nn.Parameter]) -> None:
    optimizer: Any = torch.optim.AdamW(parameters, lr=0.1)
    parameters[0].grad = torch.ones(3)
    optimizer.step()
    with first_state(optimizer, parameters):
        assert set(optimizer.state) == {parameters[0]}
    assert optimizer.state[parameters[0]]["step"] == 1


def test_an_optimizer_that_wants_a_closure_is_refused(
    parameters: list[nn.Parameter],
) -> None:
    optimizer = torch.optim.LBFGS(parameters)
    with (
        pytest.raises(BadOptions, match=r"^LBFGS.step wants a closure"),
        first_state(optimizer, parameters),
    ):
        pass
