"""Determinants of matrices, by factors that mean one thing.

The factors that aten's ops leave for the backward are of a matrix or of its transpose,
by how it lies in memory, and the backward is traced for one of the two. In a program
that is run in parts a matrix may lie otherwise: here which one it is gets decided once,
where it is traced.
"""

from __future__ import annotations

import torch
from torch import Tensor

aten = torch.ops.aten


def _factors(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return LU factors and pivots, of that of the two which aten would factor."""
    turned = matrix.is_contiguous() and not matrix.is_complex()
    return aten.linalg_lu_factor_ex.default(matrix.mT if turned else matrix)[:2]


def _diagonal(factors: Tensor) -> Tensor:
    return factors.diagonal(dim1=-2, dim2=-1)


def _parity(pivots: Tensor) -> Tensor:
    """Return whether an even or an odd number of rows was exchanged, as 1 or -1."""
    size = pivots.shape[-1]
    own = torch.arange(1, size + 1, dtype=pivots.dtype, device=pivots.device)
    return 1 - 2 * ((pivots != own).sum(-1) % 2)


def det(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the determinant, and the factors and pivots it is made of."""
    factors, pivots = _factors(matrix)
    return _diagonal(factors).prod(-1) * _parity(pivots), factors, pivots


def slogdet(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the sign and logarithm of the determinant, factors and pivots."""
    factors, pivots = _factors(matrix)
    diagonal = _diagonal(factors)
    sign = diagonal.sgn().prod(-1) * _parity(pivots)
    return sign, diagonal.abs().log().sum(-1), factors, pivots
