"""Count the bytes of the tensors that are alive, op by op."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the memory that ops make under it, until the last tensor lets go of it.

    Attributes:
        now: bytes that are alive.
        peak: the most that were.
        after: per op, in order, its name and what was alive after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self.after: list[tuple[str, int]] = []
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        for leaf in tree_leaves((args, kwargs)):  # what was there before is not made
            if isinstance(leaf, torch.Tensor):
                self._known.add(_address(leaf.untyped_storage()))
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        self.peak = max(self.peak, self.now)
        self.after.append((str(func), self.now))
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        address, num_bytes = _address(storage), storage.nbytes()
        if address not in self._known:
            self._known.add(address)
            self.now += num_bytes
            weakref.finalize(storage, self._let_go, address, num_bytes)

    def _let_go(self, address: int, num_bytes: int) -> None:
        self._known.discard(address)
        self.now -= num_bytes


def _address(storage: torch.UntypedStorage) -> int:
    return storage._cdata  # pyright: ignore[reportPrivateUsage]
