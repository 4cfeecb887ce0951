"""Calls of norms, and of the sums that a batch norm is made of, for rule_samples.py."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from tests.compiler.rules.rule_values import call, positive, x
from torch import Tensor

from partita.testing.prover import Sample

aten = torch.ops.aten


def rms_norm_backward(
    grad: Tensor,
    image: Tensor,
    shape: list[int],
    rstd: Tensor,
    weight: Tensor | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor | None]:
    """Compute in plain steps what has a kernel on CUDA only."""
    unit = image * rstd
    scaled = grad if weight is None else grad * weight
    dims = tuple(range(-len(shape), 0))
    grad_image = (scaled - unit * (scaled * unit).mean(dims, keepdim=True)) * rstd
    leading = tuple(range(grad.ndim - len(shape)))
    return grad_image, (grad * unit).sum(leading) if wanted[1] else None


def norms() -> Iterator[Sample]:
    image, weight, bias = x(4, 2, 6), x(6), x(6)
    for args in ((weight, bias), (None, None), (weight, None)):
        yield call("native_layer_norm", image, [6], *args, 1e-5)
        _, mean, rstd = aten.native_layer_norm(image, [6], *args, 1e-5)
        wanted = [True, *(arg is not None for arg in args)]
        stats = ([6], mean, rstd)
        yield call(
            "native_layer_norm_backward", x(4, 2, 6), image, *stats, *args, wanted
        )
    yield call("native_layer_norm", image, [2, 6], x(2, 6), x(2, 6), 1e-5)
    for scale in (weight, None):
        yield call("_fused_rms_norm", image, [6], scale, 1e-5)
        _, rstd = aten._fused_rms_norm(image, [6], scale, 1e-5)
        wanted = [True, scale is not None]
        args = (x(4, 2, 6), image, [6], rstd, scale, wanted)
        op = "aten._fused_rms_norm_backward.default"
        yield Sample(op, args, {}, stand_in=rms_norm_backward)
    for args in ((x(4), x(4)), (None, None)):
        yield from _batch_norm(x(4, 4, 3, 3), args)
    for shape in ((4, 4, 3, 3), (5, 4), (3, 4, 2), (2, 4, 2, 1, 3)):
        known = x(4), positive(4)
        yield call("partita.batch_norm_deviations", x(*shape), known[0])
        yield call("partita.batch_norm_products", x(*shape), x(*shape), *known)


def _batch_norm(image: Tensor, args: tuple[Tensor | None, ...]) -> Iterator[Sample]:
    scale = args[0]
    running = (x(4), positive(4))
    name = "_native_batch_norm_legit"
    yield call(f"{name}_no_training", image, *args, *running, 0.1, 1e-5)
    for training in (True, False):
        options = (training, 0.1, 1e-5)
        yield call(f"{name}_functional", image, *args, *running, *options)
        _, mean, rstd, *_ = aten._native_batch_norm_legit_functional(
            image, *args, *running, *options
        )
        wanted = [True, scale is not None, scale is not None]
        if training:
            yield call(f"{name}.no_stats", image, *args, True, 0.1, 1e-5)
            found = (scale, None, None, mean, rstd, True, 1e-5, wanted)
            yield call("native_batch_norm_backward", x(4, 4, 3, 3), image, *found)
        stats = (scale, *running, mean, rstd, training, 1e-5, wanted)
        yield call("native_batch_norm_backward", x(4, 4, 3, 3), image, *stats)


GROUPS = (norms,)
