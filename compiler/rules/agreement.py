"""Whether two results are the same but for rounding."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

_FINE = 1e-9
_COARSE = 1e-5  # where some tensor of the call is in single precision


def tolerance_of(tensors: Iterable[Tensor | None]) -> float:
    """Return what a call's results may differ by, given its tensors: the coarsest's."""
    inexact = [
        x.dtype
        for x in tensors
        if x is not None and (x.is_floating_point() or x.is_complex())
    ]
    is_double = all(torch.finfo(dtype).bits >= 64 for dtype in inexact)
    return _FINE if is_double else _COARSE


def scale_of(tensors: Iterable[Tensor]) -> float:
    """Return the largest magnitude, at least 1.

    Sums in another order differ by what the largest summands were rounded by.
    """
    return max(1.0, *map(_largest, tensors))


def _largest(tensor: Tensor) -> float:
    magnitudes = tensor.abs() if tensor.dtype != torch.bool else tensor
    finite = magnitudes[tensor.isfinite()]
    return float(finite.max()) if finite.numel() else 0.0


def agrees(found: Tensor, want: Tensor, tolerance: float, scale: float) -> bool:
    """Whether tensors of one shape are equal, or close if they are inexact.

    Args:
        found: what the ranks' results join to.
        want: what they ought to.
        tolerance: see ``tolerance_of``.
        scale: see ``scale_of``.
    """
    if torch.equal(found, want):
        return True
    if not want.is_floating_point() and not want.is_complex():
        return False
    return torch.allclose(found, want, tolerance, tolerance * scale, equal_nan=True)
