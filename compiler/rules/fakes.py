"""What the rules' own ops make when nothing is computed: types alone.

torch asks an op for its types with fake tensors in place of its arguments. Most of the
ops here state the shape of their results as their last argument, ``sizes``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def of_sizes(*like: int) -> Callable[..., Tensor | tuple[Tensor, ...]]:
    """Return the types of an op whose results all have the shape ``sizes``.

    Args:
        like: per result, the position of the argument that has its dtype.
    """

    def types(*args: Any) -> Tensor | tuple[Tensor, ...]:
        made = tuple(args[position].new_empty(list(args[-1])) for position in like)
        return made[0] if len(made) == 1 else made

    return types


def like_first(first: Tensor, *_: Any) -> Tensor:
    """Return the type of an op whose result is as its first argument."""
    return first.new_empty(first.shape)
