"""Ops that capture takes apart, because their parts partition better than they do.

Means become a sum and a division by the *logical* count, so that a partial sum passes
through; losses become gathers, wheres and sums; the rest is bookkeeping that has
simpler equivalents. Everything else stays one op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from partita.compiler.capture.factored import det, slogdet
from partita.compiler.capture.strided import as_strided, as_strided_scatter
from partita.compiler.capture.torch_private import decompositions

aten = torch.ops.aten

FROM_TORCH = (
    aten.nll_loss_forward,
    aten.nll_loss_backward,
    aten.nll_loss2d_forward,
    aten.nll_loss2d_backward,
    aten.mse_loss,
    aten.mse_loss_backward,
    aten.smooth_l1_loss,
    aten.smooth_l1_loss_backward,
    aten.huber_loss,
    aten.huber_loss_backward,
    aten.binary_cross_entropy,
    aten.binary_cross_entropy_backward,
    aten.binary_cross_entropy_with_logits,
    aten.soft_margin_loss,
    aten.stack,
    aten.unbind,
    aten.rsub,
    aten.logsumexp,
    aten.roll,
    aten.glu,
    aten.glu_backward,
    aten._fused_rms_norm,
    aten._fused_rms_norm_backward,
    aten.addcmul,
    aten.addcdiv,
    aten.norm,
    aten.renorm,
    aten._euclidean_dist,
    aten.affine_grid_generator,
    aten.channel_shuffle,
    aten.diag_embed,
)
"""Taken apart by torch's own decompositions."""

_HALF = (torch.float16, torch.bfloat16)
_MEAN = 1  # of the ways to reduce a loss


def _dims(x: Tensor, dim: Sequence[int] | int | None) -> list[int]:
    if dim is None or dim == [] or not x.ndim:  # which has one dim, to those who ask
        return list(range(x.ndim))
    return [d % x.ndim for d in ([dim] if isinstance(dim, int) else dim)]


def _mean(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return _mean_dim(x, None, False, dtype=dtype)


def _mean_dim(
    x: Tensor,
    dim: Sequence[int] | None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    dims = _dims(x, dim)
    count = prod(x.shape[d] for d in dims)
    if not dims:
        return x.clone() if dtype is None else x.to(dtype)
    made = x.dtype if dtype is None else dtype
    if made in _HALF:  # the sum of all may be out of range, or have no digits left
        total = aten.sum.dim_IntList(x, dims, keepdim, dtype=torch.float32)
        return aten.div.Scalar(total, count).to(made)
    return aten.div.Scalar(aten.sum.dim_IntList(x, dims, keepdim, dtype=dtype), count)


def _var(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _std(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    return _var(x, dim, correction=correction, keepdim=keepdim).sqrt()


def _std_mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    var, mean = _var_mean(x, dim, correction=correction, keepdim=keepdim)
    return var.sqrt(), mean


def _var_mean(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> tuple[Tensor, Tensor]:
    if x.dtype in _HALF:
        var, mean = _var_mean(
            x.to(torch.float32), dim, correction=correction, keepdim=keepdim
        )
        return var.to(x.dtype), mean.to(x.dtype)
    if x.is_complex():
        parts = x.real, x.imag
        (real, real_mean), (imag, imag_mean) = (
            _var_mean(part, dim, correction=correction, keepdim=keepdim)
            for part in parts
        )
        return real + imag, torch.complex(real_mean, imag_mean)
    dims = _dims(x, dim)
    count = prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    mean = _mean_dim(x, dims, True)
    squares = (x - mean).pow(2)
    var = aten.div.Scalar(aten.sum.dim_IntList(squares, dims, keepdim), max(count, 0.0))
    return var, mean if keepdim else mean.squeeze(dims)


def _count_nonzero(x: Tensor, dim: Sequence[int] | int | None = None) -> Tensor:
    return aten.sum.dim_IntList(x != 0, _dims(x, dim))


def _aminmax(
    x: Tensor, *, dim: int | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    dims = _dims(x, dim)
    return aten.amin.default(x, dims, keepdim), aten.amax.default(x, dims, keepdim)


def _group_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: int,
    channels: int,
    positions: int,
    groups: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    sums = torch.float32 if x.dtype in _HALF else x.dtype
    shape = [batch, groups, channels // groups, positions]
    grouped = x.to(sums).reshape(shape)
    var, mean = _var_mean(grouped, [2, 3], correction=0, keepdim=True)
    scale = (var + eps).rsqrt()
    out = (grouped - mean) * scale
    per_channel = [1, groups, channels // groups, 1]
    if weight is not None:
        out = out * weight.reshape(per_channel)
    if bias is not None:
        out = out + bias.reshape(per_channel)
    kept = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    mean, scale = (t.to(kept).reshape(batch, groups) for t in (mean, scale))
    return out.to(x.dtype).reshape(x.shape), mean, scale


def _group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    *rest: Any,
) -> tuple[Tensor | None, ...]:
    if x.dtype not in _HALF:
        return decompositions.native_group_norm_backward(
            grad, x, mean, scale, weight, *rest
        )
    wide = (None if t is None else t.float() for t in (grad, x, mean, scale, weight))
    made = decompositions.native_group_norm_backward(*wide, *rest)
    own = x.dtype if weight is None else weight.dtype
    dtypes = x.dtype, own, own
    return tuple(t if t is None else t.to(d) for t, d in zip(made, dtypes, strict=True))


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    norms = v.square().sum(_others(v, dim), keepdim=True).sqrt()
    return v * (g / norms), norms


def _weight_norm_backward(
    grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    along = (grad * v).sum(_others(v, dim), keepdim=True)
    return (g / norms) * (grad - v * (along / norms.square())), along / norms


def _trilinear(
    first: Tensor,
    weight: Tensor,
    second: Tensor,
    without_first: Sequence[int],
    without_weight: Sequence[int],
    without_second: Sequence[int],
    summed: Sequence[int],
    unroll_dim: int = 1,
) -> Tensor:
    """Return a sum of products of three tensors, each without some of its dims."""
    ndim = first.ndim + len(without_first)
    absent = without_first, without_weight, without_second, summed
    a, b, c, out = ([d for d in range(ndim) if d not in dims] for dims in absent)
    return torch.einsum(first, a, weight, b, second, c, out)


def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    """Return what lies in one piece, as aten's does, and its views may ask for it."""
    sizes = [1] * (len(repeats) - x.ndim) + list(x.shape)
    pairs = list(zip(repeats, sizes, strict=True))
    once = [m for n, size in pairs for m in ([size] if n == 1 else [1, size])]
    often = [m for n, size in pairs for m in ([size] if n == 1 else [n, size])]
    whole = x.reshape(once).expand(often).clone(memory_format=torch.contiguous_format)
    return whole.view([n * size for n, size in pairs])


def _random_slope_backward(
    grad: Tensor,
    x: Tensor,
    slopes: Tensor,
    low: float,
    high: float,
    is_training: bool,
    is_result: bool,
) -> Tensor:
    return grad * slopes


def _soft_margin_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, reduction: int
) -> Tensor:
    """Return what keeps its digits: torch's takes one from what is nearly one."""
    each = -target * torch.sigmoid(-target * x) * grad
    return aten.div.Scalar(each, x.numel()) if reduction == _MEAN else each


def _others(x: Tensor, dim: int) -> list[int]:
    return [other for other in range(x.ndim) if other != dim % x.ndim]


OWN: dict[Any, Callable[..., Any]] = {
    aten.mean.default: _mean,
    aten.mean.dim: _mean_dim,
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
    aten.std.correction: _std,
    aten.std_mean.correction: _std_mean,
    aten.count_nonzero.default: _count_nonzero,
    aten.count_nonzero.dim_IntList: _count_nonzero,
    aten.aminmax.default: _aminmax,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten._trilinear.default: _trilinear,
    aten._weight_norm_interface.default: _weight_norm,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten.repeat.default: _repeat,
    aten.soft_margin_loss_backward.default: _soft_margin_loss_backward,
    aten.rrelu_with_noise_backward.default: _random_slope_backward,
    aten._linalg_det.default: det,
    aten._linalg_slogdet.default: slogdet,
    aten.as_strided.default: as_strided,
    aten.as_strided_scatter.default: as_strided_scatter,
}
"""Taken apart here, with the logical count as a constant."""
