"""Train five steps, on ranks and in one process, and check that they agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import pytest
import torch
from tests.models.zoo import Built
from torch.overrides import TorchFunctionMode

import partita as pt
from partita.compiler.capture.torch_private import pytree
from partita.compiler.plan.stages import read_schedule

STEPS = 5


class _Double(TorchFunctionMode):
    """Within it, what a model would cast to float32 whatever it has is float64.

    So are norms, softmaxes and losses of transformers; parts of these would be rounded
    otherwise than the whole.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args, kwargs = pytree.tree_map(_doubled, (args, kwargs or {}))
        return func(*args, **kwargs)


def _doubled(leaf: Any) -> Any:
    return torch.float64 if leaf is torch.float32 else leaf


def _in_double(forward: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(forward)
    def doubled(*args: Any, **kwargs: Any) -> Any:
        with _Double():
            return forward(*args, **kwargs)

    return doubled


@dataclass(frozen=True)
class Training:
    """How a model is trained, and how far ranks may be from one process.

    ``optimizer`` takes parameters and ``lr``. ``losses`` is relative; ``values``
    relative and absolute, of all that is saved.
    """

    dtype: torch.dtype
    optimizer: Callable[..., torch.optim.Optimizer]
    losses: float
    values: tuple[float, float]

    def built(self, built: Built) -> Built:
        """Return a model and what it is called with, in the dtype of the training."""

        def cast(leaf: Any) -> Any:
            is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
            return leaf.to(self.dtype) if is_float else leaf

        model, args, kwargs = built
        args, kwargs = pytree.tree_map(cast, (args, kwargs))
        if self.dtype == torch.float64:
            model.forward = _in_double(model.forward)
        return model.to(self.dtype), args, kwargs

    def train(self, built: Built, plan: pt.Plan) -> Trained:
        """Train ``STEPS`` steps on this rank."""
        model, args, kwargs = built
        program = pt.compile(model, plan)
        optimizer = self.optimizer(program.parameters(), lr=1e-2)
        losses: list[float] = []
        for _ in range(STEPS):
            losses.append(float(program.step(*args, **kwargs)))
            program.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
        state = {k: v.full_tensor() for k, v in program.state_dict().items()}  # type: ignore[attr-defined]
        return Trained(losses, state, [str(action) for action in program.actions])

    def check(self, plan: pt.Plan, ranks: Sequence[Trained], alone: Trained) -> None:
        """Check that ranks trained as one process, in the order of their schedule."""
        schedule = read_schedule(plan)
        row_of = {
            rank: row
            for stage, row in zip(plan.stages, schedule.rank_of, strict=True)
            for rank in stage.ranks
        }
        seen: set[str] = set()
        for rank, own in enumerate(ranks):
            assert own.losses == pytest.approx(alone.losses, rel=self.losses), rank
            order = [str(action) for action in schedule.rows[row_of[rank]]]
            assert own.actions == order, rank
            relative, absolute = self.values
            for key, value in own.state.items():
                torch.testing.assert_close(
                    value, alone.state[key], rtol=relative, atol=absolute, msg=key
                )
            seen |= set(own.state)
        assert seen == set(alone.state)


@dataclass(frozen=True)
class Trained:
    """The losses of all steps, the values that a rank holds then, its last actions."""

    losses: list[float]
    state: dict[str, torch.Tensor]
    actions: list[str]


ADAMW = Training(torch.float64, torch.optim.AdamW, 1e-9, (1e-7, 1e-9))
SGD = Training(torch.float32, torch.optim.SGD, 1e-5, (1e-4, 1e-5))
