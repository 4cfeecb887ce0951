"""What is put in place of a tensor's data is written into it, so that a trace sees it.

``p.data = value`` gives ``p`` other memory, which leaves no call in a graph: whatever
comes after would see the value, and the step would not keep it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from partita.compiler.errors import CaptureFailed

_DATA: Any = torch.Tensor.data  # what of the class gets and sets it

SET_DATA: Any = _DATA.__set__
"""What ``tensor.data = value`` calls."""


def write_data(tensor: Tensor, value: Tensor) -> None:
    """Write a value to a tensor, in place of ``tensor.data = value``.

    Raises:
        CaptureFailed: when a tensor that stays would change its shape or dtype.
    """
    if value.shape == tensor.shape and value.dtype == tensor.dtype:
        tensor.detach().copy_(value.detach())
    elif tensor.is_leaf:
        raise CaptureFailed(
            f".data of a tensor becomes {value.dtype} of shape {list(value.shape)}, it "
            f"was {tensor.dtype} of shape {list(tensor.shape)}; a step may change only "
            "its values"
        )
    else:
        SET_DATA(tensor, value)
