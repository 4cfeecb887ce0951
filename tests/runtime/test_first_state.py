"""An optimizer that has not stepped shows its state, and has not stepped for it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from partita.compiler.errors import BadOptions
from partita.runtime.first_state import first_state, with_state

Optimizer = Callable[..., torch.optim.Optimizer]


@pytest.fixture
def parameters() -> list[nn.Parameter]:
    """Two parameters, of which the first is trained."""
    return [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))]


SETTINGS: dict[str, Optimizer] = {
    "adamw": partial(torch.optim.AdamW, weight_decay=0.5),
    "fused": partial(torch.optim.AdamW, fused=True),
    "amsgrad": partial(torch.optim.Adam, amsgrad=True, foreach=False),
    "rmsprop": partial(torch.optim.RMSprop, centered=True, momentum=0.9),
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "adadelta": torch.optim.Adadelta,
    "asgd": torch.optim.ASGD,
    "rprop": torch.optim.Rprop,
    "rprop-foreach": partial(torch.optim.Rprop, foreach=True),
    "sgd": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "sgd-alone": torch.optim.SGD,
}


def trained(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> list[float]:
    """Return a parameter of ones after some steps."""
    with torch.no_grad():
        parameter.fill_(1.0)
    for step in range(3):
        parameter.grad = torch.tensor([1.0, -0.5, 0.1]) * (step + 1)
        optimizer.step()
    return parameter.tolist()


@pytest.mark.parametrize("kind", SETTINGS)
def test_it_is_that_of_no_step(kind: str, parameters: list[nn.Parameter]) -> None:
    optimizer = SETTINGS[kind](parameters, lr=0.1)
    settings = str(optimizer.param_groups)
    first, second = parameters
    second.grad = torch.full((2,), 7.0)
    with first_state(optimizer, [first]):
        assert not optimizer.state.get(second)
        found = copy.deepcopy(optimizer.state_dict())
    assert not optimizer.state
    assert first.tolist() == [1.0] * 3
    assert second.tolist() == [1.0] * 2
    assert first.grad is None
    assert second.grad.tolist() == [7.0] * 2
    assert str(optimizer.param_groups) == settings
    second.grad = None
    want = trained(SETTINGS[kind](parameters, lr=0.1), first)
    optimizer.load_state_dict(found)
    assert trained(optimizer, first) == want


def test_what_begins_with_other_values_has_them(parameters: list[nn.Parameter]) -> None:
    class Own(torch.optim.Optimizer):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            """Update."""
            for p in self.param_groups[0]["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        state["scale"] = torch.empty_like(p).fill_(4.0)
                    p.data.fill_(0.0)
                    p.data.sub_(state["scale"].mul_(2.0))

    optimizer = Own(parameters, {})
    with first_state(optimizer, parameters):
        assert optimizer.state[parameters[0]]["scale"].tolist() == [4.0] * 3
    assert parameters[0].tolist() == [1.0] * 3


def test_nobody_is_told_of_a_step(parameters: list[nn.Parameter]) -> None:
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    told: list[str] = []

    def before(*_: Any) -> None:
        told.append("before")

    def behind(*_: Any) -> None:
        told.append("behind")

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(behind)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with first_state(optimizer, parameters):
        pass
    assert told == []
    with pytest.warns(UserWarning, match="lr_scheduler.step"):
        scheduler.step()
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert told == ["before", "behind"]


def test_what_is_frozen_has_none(parameters: list[nn.Parameter]) -> None:
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    first, second = parameters
    second.requires_grad_(False)
    with first_state(optimizer, parameters):
        assert set(optimizer.state) == {first}
    assert with_state(optimizer, parameters) == [first]
    assert with_state(torch.optim.SGD(parameters), parameters) == []
    assert with_state(torch.optim.LBFGS(parameters), parameters) == []


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
