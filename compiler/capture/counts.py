"""How often each of so many integers occurs, as sums of a fixed shape.

torch's count is longer where an integer is beyond ``minlength``, a shape that depends
on values. This one fails there, as whatever is indexed by such an integer does.
"""

from __future__ import annotations

import torch
from torch import Tensor

COUNT = torch.bincount


def bincount(
    input: Tensor, weights: Tensor | None = None, minlength: int = 0
) -> Tensor:
    """Return the count, or the sum of weights, of each integer below ``minlength``."""
    if not minlength or input.ndim != 1:
        return COUNT(input, weights, minlength)
    if weights is None:
        weights = torch.ones_like(input, dtype=torch.int64)
    elif weights.dtype != torch.float32:
        weights = weights.double()
    return weights.new_zeros(minlength).scatter_add(0, input.long(), weights)
