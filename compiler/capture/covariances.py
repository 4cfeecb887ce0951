"""Covariances and correlations of rows, without torch's look at how many there are.

Torch warns where nothing is left of the number of observations, for which it reads the
number that it divides by off a tensor.
"""

from __future__ import annotations

import torch
from torch import Tensor


def covariances(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """Return the covariances of the rows of ``input`` ``[variable, observation]``.

    Args:
        input: one row may come without its dim.
        correction: by how much the divisor is less than the number of observations.
        fweights: how often each observation was made.
        aweights: how much each observation counts.

    Raises:
        RuntimeError: when there are more than two dims.
    """
    if input.ndim > 2:
        raise RuntimeError(f"cov wants at most two dims, found {list(input.shape)}")
    rows = torch.atleast_2d(input)
    given = [w for w in (fweights, aweights) if w is not None]
    if not given:
        left = max(rows.shape[1] - correction, 0)
        centred = rows - rows.mean(1, keepdim=True)
        return (centred @ centred.mH / left).squeeze()
    weights = given[0] * given[1] if len(given) > 1 else given[0]
    total = weights.sum()
    centred = rows - (rows * weights).sum(1, keepdim=True) / total
    taken = total if aweights is None else (weights * aweights).sum() / total
    lost = correction if aweights is None else correction * taken
    return (centred @ (centred * weights).mH / (total - lost).clamp(min=0)).squeeze()


def correlations(input: Tensor) -> Tensor:
    """Return the correlations of the rows of ``input`` ``[variable, observation]``."""
    found = covariances(input)
    if not found.ndim:
        return found / found
    spread = found.diagonal().real.sqrt() if found.is_complex() else found.diag().sqrt()
    found = found / spread.unsqueeze(1) / spread.unsqueeze(0)
    if found.is_complex():
        return torch.complex(found.real.clamp(-1, 1), found.imag.clamp(-1, 1))
    return found.clamp(-1, 1)
