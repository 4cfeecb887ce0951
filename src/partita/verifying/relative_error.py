"""How far a tensor is from another, and what that is relative to (DESIGN, decision 15).

No unit: a difference over a magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch


def _widest(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def relative_error(found: torch.Tensor, wanted: torch.Tensor, scale: float) -> float:
    """Return max|found - wanted| / scale; infinity for other shapes or for NaN."""
    if found.shape != wanted.shape:
        return float("inf")
    if not wanted.numel():
        return 0.0
    a, b = _widest(found), _widest(wanted)
    worst = float(torch.where(a == b, 0.0, (a - b).abs()).max())
    return worst / scale if worst == worst else float("inf")


def largest_of(value: torch.Tensor) -> float:
    """Return the largest finite magnitude, 0 where there is none."""
    wide = _widest(value)
    finite = wide[wide.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0


def scale_floor(
    name: str, largest_gradient: float, *values: Mapping[str, torch.Tensor]
) -> float:
    """Return the least that an error of the tensor called ``name`` is relative to."""
    if name.startswith("buffer:"):
        module = name.rpartition(".")[0]
        beside = [
            tensor
            for tensors in values
            for other, tensor in tensors.items()
            if other.startswith("buffer:") and other.rpartition(".")[0] == module
        ]
        floats = [tensor for tensor in beside if tensor.is_floating_point()]
        return 1e-3 * max(map(largest_of, floats), default=0.0)
    is_gradient = ":" not in name and name != "loss"
    return 1e-3 * largest_gradient if is_gradient else 0.0
