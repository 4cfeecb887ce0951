"""What a program returns: tensors of which a script may still want a backward.

``step`` has run it, and a call of the program runs the forward alone. Torch would say
that an element does not require grad. What is computed of such tensors, a loss of
outputs or half of a loss, is one too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from partita.compiler.errors import BadOptions
from partita.runtime.marked_tensor import MarkedTensor, plainly


class Returned(MarkedTensor):
    """A tensor that a program returned, or that was computed of one."""

    @classmethod
    def of(cls, value: torch.Tensor) -> Returned:
        """Return ``value``, the same memory, as what a program returned."""
        return value.as_subclass(cls)

    def backward(self, *_: Any, **__: Any) -> NoReturn:
        """Say that there is none.

        Raises:
            BadOptions: with what to call.
        """
        _refuse()

    def __format__(self, format_spec: str) -> str:
        """Format as a plain tensor."""
        return self.plain().__format__(format_spec)

    def __repr__(self, **kwargs: Any) -> str:
        """Show as a plain tensor."""
        return self.plain().__repr__(**kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy that has no backward either."""
        return memo.setdefault(id(self), self.clone())

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``func``; what it makes is of what a program returned."""
        if func is torch.autograd.grad:
            _refuse()
        if func is torch.Tensor.as_subclass:
            return plainly(func, args, kwargs)
        return super().__torch_function__(func, types, tuple(args), kwargs or {})


def returned(value: torch.Tensor) -> torch.Tensor:
    """Return a program's value as one without a backward; fake ones as they are."""
    return Returned.of(value) if type(value) is torch.Tensor else value


def _refuse() -> NoReturn:
    raise BadOptions(
        "backward: program.step(...) has run the backward and left the gradients in "
        ".grad, where those of several steps add up; program(...) runs the forward "
        "alone. Want program.step(...) and no backward(), and pt.LossScaler(program) "
        "in place of a GradScaler"
    )
