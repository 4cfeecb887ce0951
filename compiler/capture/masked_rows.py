"""Rows that are written where a mask says, as of images among those of words.

``x[mask] = rows`` has a backward that takes the rows out again, as many as the mask has
places, which no trace knows. That of ``masked_scatter`` takes as many as were given.
What is the same in all places, as a token that is learned, is a ``where``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SET_ITEM = torch.Tensor.__setitem__


def set_item(x: Tensor, at: Any, values: Any) -> None:
    """Write ``values`` to ``x[at]``."""
    is_masked = isinstance(at, Tensor) and at.dtype == torch.bool
    if not is_masked or not isinstance(values, Tensor) or not values.requires_grad:
        SET_ITEM(x, at, values)
        return
    row = x.shape[at.ndim :]
    mask = at.reshape(*at.shape, *[1] * len(row)).expand(x.shape)
    if values.ndim > len(row) and len(values) > 1:
        rows = values.expand(len(values), *row)
        x.masked_scatter_(mask, rows.to(x.dtype))
    else:  # the same in all places
        x.copy_(torch.where(mask, values, x))
