"""The state that an optimizer will have, asked for before it has stepped.

A checkpoint is read over tensors that are there. Most optimizers make theirs in their
first step, so one that has not stepped would have nothing to read over, and would go on
from zeros without a word.

So it takes a step in which nothing that is there is changed: what is left is the state
as the optimizer makes it, with what does not begin at zero, and no step counted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager
from typing import Any

import torch

from partita.compiler.capture.schemas import written_arguments
from partita.compiler.capture.torch_private import OPTIMIZER_HOOKS, DispatchMode, pytree
from partita.runtime.optimizer_trial import check_gradients_suffice, evaluates_loss
from partita.runtime.storages import storages

_aten = torch.ops.aten
_BEGINNING = (_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default)
"""Writes with which a tensor may be made."""


@contextmanager
def first_state(
    optimizer: torch.optim.Optimizer, trained: Collection[torch.Tensor]
) -> Generator[None, None, None]:
    """Within it ``optimizer`` has state; afterwards what it had.

    Where it has none it is that which a step begins with. ``trained`` are the
    parameters that get gradients: the others would have no state in a checkpoint
    either.

    Raises:
        BadOptions: for an optimizer that evaluates the loss by itself.
    """
    if optimizer.state:
        yield
        return
    check_gradients_suffice(optimizer)
    try:
        _begin(optimizer, trained)
        yield
    finally:
        optimizer.state.clear()


def with_state(
    optimizer: torch.optim.Optimizer, trained: Collection[torch.Tensor]
) -> list[torch.Tensor]:
    """Return which of the ``trained`` parameters an optimizer has state of.

    Of one that has not stepped it is which it will have; none are known of one that
    evaluates the loss by itself.
    """
    if evaluates_loss(optimizer):
        return []
    ids = {id(parameter) for parameter in trained if parameter.requires_grad}
    with first_state(optimizer, trained):
        found = optimizer.state.items()
        return [parameter for parameter, x in found if x and id(parameter) in ids]


def _begin(optimizer: torch.optim.Optimizer, trained: Collection[torch.Tensor]) -> None:
    """Have an optimizer make its state, on gradients of zero, and change nothing."""
    ids = {id(parameter) for parameter in trained if parameter.requires_grad}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [parameter.grad for parameter in parameters]
    hooks = {k: x for k, x in vars(optimizer).items() if k.startswith(OPTIMIZER_HOOKS)}
    try:
        for parameter in parameters:
            is_trained = id(parameter) in ids
            parameter.grad = torch.zeros_like(parameter) if is_trained else None
        vars(optimizer).update({name: OrderedDict[int, Any]() for name in hooks})
        with _NothingChanges(parameters) as unchanged:
            # An instance's own may be a scheduler's, that counts.
            type(optimizer).step(optimizer)
        unchanged.undo()
    finally:
        vars(optimizer).update(hooks)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    for values in optimizer.state.values():
        if isinstance(values.get("step"), int | float):
            values["step"] = 0


class _NothingChanges(DispatchMode):
    """Leaves out writes, but for those with which a tensor of the state begins.

    Those to scalars, which a step may divide by, are made, and can be undone.
    """

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._kept = storages(parameters)
        self._before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def undo(self) -> None:
        """Give all scalars the values that they began with."""
        with torch.no_grad():
            for scalar, value in reversed(self._before):
                scalar.copy_(value)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an op that may be run; return what another would write to."""
        written = written_arguments(func, args, kwargs or {})
        leaves: list[Any] = pytree.tree_leaves(written)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        is_own = self._kept.isdisjoint(storages(tensors))
        if is_own and all(x.ndim == 0 for x in tensors):
            self._before += [(x, x.clone()) for x in tensors]
        elif not (is_own and func in _BEGINNING):
            (first, *_) = written
            return first if isinstance(first, torch.Tensor) else None
        return func(*args, **(kwargs or {}))
