"""What an index takes that is a tensor of one number: a part of a fixed shape.

torch reads the number, which no trace knows, and returns a view. Here the part is a
copy, by ``index_select``; whoever writes to it would not write to the whole, and is
told so.

Before   x[:, i]                                i is a tensor of no dims
After    index_select(x, 1, i of one place)[:, 0]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

GET_ITEM = torch.Tensor.__getitem__


class Selected:
    """The parts that were taken during one forward, none of which is written to."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def get_item(self, x: Tensor, at: Any) -> Tensor:
        """Return ``x[at]``."""
        entries: list[Any] = list(at) if isinstance(at, tuple) else [at]
        unknown = [place for place, entry in enumerate(entries) if _is_unknown(entry)]
        if not unknown:
            return GET_ITEM(x, at)
        dims = _dims(entries, x.ndim)
        for place in unknown:
            dim, number = dims[place], entries[place].long()
            number = torch.where(number < 0, number + x.shape[dim], number)
            x = x.index_select(dim, number.reshape(1))
            entries[place] = 0
        self._parts.append(x)
        return GET_ITEM(x, tuple(entries))

    def check_unwritten(self) -> None:
        """Check that the parts are as they were taken.

        Raises:
            NotImplementedError: if one was written to.
        """
        if any(part._version for part in self._parts):
            raise NotImplementedError(
                "what x[i] takes by a tensor i of one number is written to, which "
                "would not reach x; take torch.where or index_copy"
            )


def _is_unknown(entry: Any) -> bool:
    """Whether an entry of an index is a tensor of one number that no trace knows."""
    if not isinstance(entry, Tensor) or entry.ndim or entry.dtype == torch.bool:
        return False
    constant: Any = getattr(entry, "constant", entry)  # what a fake one stands for
    if constant is None:
        return True
    try:
        int(constant)
    except RuntimeError:  # of a dispatch mode that has no values
        return True
    return False


def _dims(entries: list[Any], ndim: int) -> list[int]:
    """Return the dim that each entry of an index is of, in a tensor of ``ndim``."""
    taken = [_num_taken(entry) for entry in entries]
    left = ndim - sum(taken)
    taken = [left if e is Ellipsis else n for e, n in zip(entries, taken, strict=True)]
    return [sum(taken[:place]) for place in range(len(taken))]


def _num_taken(entry: Any) -> int:
    """Return how many dims an entry of an index is of."""
    if entry is None or entry is Ellipsis or isinstance(entry, bool):
        return 0
    if isinstance(entry, Tensor) and entry.dtype == torch.bool:
        return entry.ndim
    return 1
