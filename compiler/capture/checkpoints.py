"""A model's own checkpoints, which only call their functions here.

What they do beside is no part of what a model computes: they forget what the backward
needs and make it again then, which is for a plan to say. A trace would see no gradient
of a reentrant one, whose own backward runs the function, and the function of any other
twice. The buffers that are written to in one, as by a batch norm, are so once a step,
where torch writes again as it makes again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch.utils import checkpoint

from partita.compiler.capture.torch_private import around_checkpoints


@contextmanager
def called_checkpoints() -> Generator[None]:
    """Within it checkpoints of either kind only call their functions."""
    reentrant = patch.object(checkpoint, "CheckpointFunction", _Called)
    with reentrant, around_checkpoints(_nothing_around):
        yield


class _Called:
    """Stands for torch's function of a reentrant checkpoint."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        """Call ``function``; ``preserve`` is of random numbers, drawn once here."""
        return function(*args)


def _nothing_around(*_: Any, **__: Any) -> Generator[None]:
    yield
