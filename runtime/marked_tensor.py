"""Tensors that know something more, and are plain ones to all who do not ask for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch


class MarkedTensor(torch.Tensor):
    """A tensor of a kind of its own, which is pickled as a plain one."""

    def plain(self) -> torch.Tensor:
        """Return a plain tensor of the same memory."""
        return plainly(torch.Tensor.as_subclass, (self, torch.Tensor))

    def __reduce_ex__(self, proto: Any) -> Any:
        """Pickle as a plain tensor."""
        return self.plain().__reduce_ex__(proto)


def plainly(
    func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return what ``func`` of torch makes of tensors that it takes for plain ones."""
    return torch.Tensor.__torch_function__(func, (), tuple(args), dict(kwargs or {}))
