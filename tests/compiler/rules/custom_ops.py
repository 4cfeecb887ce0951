"""Ops as users write them, for which the table has no row."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.rule import Call


@torch.library.custom_op("rules_test::swish", mutates_args=())
def swish(x: Tensor, slope: float) -> Tensor:
    """Every element by itself."""
    return x * torch.sigmoid(slope * x)


@torch.library.custom_op("rules_test::row_norm", mutates_args=())
def row_norm(x: Tensor, weight: Tensor) -> Tensor:
    """Every row by itself, linear in the weight."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


@torch.library.custom_op("rules_test::dense", mutates_args=())
def dense(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A product, with one dim summed away, and a bias."""
    return x @ weight + bias


@torch.library.custom_op("rules_test::widest", mutates_args=())
def widest(x: Tensor) -> Tensor:
    """Reduce by a maximum."""
    return x.abs().amax(0)


@torch.library.custom_op("rules_test::stir", mutates_args=())
def stir(x: Tensor) -> Tensor:
    """Mix everything with everything."""
    return torch.fft.fft2(x.cumsum(0).cumsum(1).tanh()).abs()


@torch.library.custom_op("rules_test::moments", mutates_args=())
def moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return two results of different shapes."""
    return x * 2, x.sum(0)


@torch.library.custom_op("rules_test::in_pairs", mutates_args=())
def in_pairs(x: Tensor) -> Tensor:
    """Halves are independent, quarters of eight are, elements are not."""
    return torch.sort(x.reshape(-1, 2), -1).values.reshape(x.shape)


@torch.library.custom_op("rules_test::heads", mutates_args=())
def heads(x: Tensor, num_heads: int) -> Tensor:
    """Ask that the last dim is a multiple of an argument."""
    parts = x.unflatten(-1, (num_heads, x.shape[-1] // num_heads))
    return parts.softmax(-1).flatten(-2)


@torch.library.custom_op("rules_test::clip", mutates_args=())
def clip(x: Tensor) -> Tensor:
    """Return what it is given, up to a limit that few numbers reach."""
    return x.clamp(-100, 100)


@torch.library.custom_op("rules_test::has_large", mutates_args=())
def has_large(x: Tensor) -> tuple[Tensor, Tensor]:
    """Say something that the parts of most tensors agree on."""
    return x * 2, (x.abs() > 50).any()


@torch.library.custom_op("rules_test::with_version", mutates_args=())
def with_version(x: Tensor, version: Tensor) -> tuple[Tensor, Tensor]:
    """Hand on what has nothing to do with the rest."""
    return x.exp(), version + 1


@torch.library.custom_op("rules_test::without_nan", mutates_args=())
def without_nan(x: Tensor) -> Tensor:
    """Replace what is no number."""
    return x.nan_to_num(0.0)


@torch.library.custom_op("rules_test::total", mutates_args=())
def total(xs: list[Tensor]) -> Tensor:
    """Add many tensors up."""
    return torch.stack(xs).sum(0)


@torch.library.custom_op("rules_test::pick", mutates_args=())
def pick(table: Tensor, index: Tensor) -> Tensor:
    """Look rows up."""
    return table[index]


@torch.library.custom_op("rules_test::noisy", mutates_args=())
def noisy(x: Tensor) -> Tensor:
    """Draw random numbers without saying so."""
    return x + torch.rand_like(x)


@torch.library.custom_op("rules_test::add_to", mutates_args={"x"})
def add_to(x: Tensor, y: Tensor) -> Tensor:
    """Write to an argument."""
    x.add_(y)
    return x.clone()


@torch.library.custom_op("rules_test::crash", mutates_args=())
def crash(x: Tensor) -> Tensor:
    """End the process it runs in, as a kernel without bounds checks may."""
    import os

    os.abort()


def call(name: str, args: tuple[object, ...], *results: str) -> Call:
    """Return a call of an op of this file; types are text, as in ``f32[4, 6]``."""
    given = tuple(TensorType.parse(a) if isinstance(a, str) else a for a in args)
    flat = chain(*(arg if isinstance(arg, tuple) else (arg,) for arg in given))
    return Call(
        f"rules_test.{name}.default",
        given,
        (),
        tuple(arg for arg in flat if isinstance(arg, TensorType)),
        tuple(map(TensorType.parse, results)),
    )
