"""Hooks on gradients inside of a model: code of a backward that export forgets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from partita.compiler.capture.torch_private import MODULE_HOOKS


class GradientHooks:
    """Notes whether gradients of a call of ``model`` go through hooks.

    A module may have them before the call; on other tensors it makes them itself.
    """

    def __init__(self, model: nn.Module) -> None:
        self.are_there = any(
            any(getattr(module, hooks) for hooks in MODULE_HOOKS)
            for module in model.modules()
        )

    def register(self, tensor: Tensor, hook: Callable[[Tensor], Any]) -> Any:
        """Stand in the place of ``Tensor.register_hook``."""
        self.are_there = True
        return tensor.register_hook(hook)
