"""Where the memory of tensors lies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def storages(values: Iterable[object]) -> set[int]:
    """Return the addresses of the memory that the tensors among ``values`` use."""
    return {
        value.untyped_storage().data_ptr()
        for value in values
        if isinstance(value, torch.Tensor)
    }


class Storages:
    """The storages of tensors that hardly ever move.

    They are looked for where the tensors lie elsewhere than the last time.
    """

    def __init__(self) -> None:
        self._at: list[int] = []
        self._found: frozenset[int] = frozenset()

    def of(self, tensors: Sequence[torch.Tensor]) -> frozenset[int]:
        """Return the addresses of the memory that ``tensors`` use now."""
        at = [tensor.data_ptr() for tensor in tensors]
        if at != self._at:
            self._at, self._found = at, frozenset(storages(tensors))
        return self._found
