"""The state that an optimizer will have, asked for before it has stepped.

A checkpoint is read over tensors that are there. Most optimizers make theirs in their
first step, so one that has not stepped would have nothing to read over, and would go on
from zeros without a word.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import Any

import torch

from partita.runtime.optimizer_trial import check_gradients_suffice

_OFF = ("lr", "weight_decay")  # with gradients of zero, all that would move parameters


@contextmanager
def first_state(
    optimizer: torch.optim.Optimizer, trained: Collection[torch.Tensor]
) -> Generator[None, None, None]:
    """Within it ``optimizer`` has state; afterwards what it had.

    Where it has none it is that of a step on gradients of zero that changes no
    parameter, and is not counted. ``trained`` are the parameters that get gradients:
    the others would have no state in a checkpoint either.

    Raises:
        BadOptions: for an optimizer that evaluates the loss by itself.
    """
    if optimizer.state:
        yield
        return
    check_gradients_suffice(optimizer)
    ids = {id(parameter) for parameter in trained}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [parameter.grad for parameter in parameters]
    settings = [{k: g[k] for k in _OFF if k in g} for g in optimizer.param_groups]
    try:
        for parameter in parameters:
            is_trained = id(parameter) in ids
            parameter.grad = torch.zeros_like(parameter) if is_trained else None
        for group, own in zip(optimizer.param_groups, settings, strict=True):
            group.update({key: _zero(value) for key, value in own.items()})
        optimizer.step()
        for values in optimizer.state.values():
            if isinstance(values.get("step"), torch.Tensor):
                values["step"].zero_()
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        for group, own in zip(optimizer.param_groups, settings, strict=True):
            group.update(own)
    try:
        yield
    finally:
        optimizer.state.clear()


def _zero(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0.0
