"""The user's eager model draws what its program draws.

The n-th op that draws in one is the n-th in the other: capture traced the very calls
that eager mode makes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from partita.compiler.capture.choices import (
    LEAST_EXPONENTIAL,
    Numbers,
    eager_multinomial,
    eager_permutation,
)
from partita.compiler.capture.draws import LIKE, WITH_LOW, draws_numbers
from partita.compiler.capture.random_numbers import draw, stream_of
from partita.compiler.capture.schemas import argument_names
from partita.compiler.capture.torch_private import DispatchMode
from partita.compiler.errors import CaptureFailed

aten = torch.ops.aten


def _drops_nothing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an attention kernel, which may drop at random, is told not to."""
    given = dict(zip(argument_names(func), args, strict=False)) | kwargs
    is_attention = "dropout_p" in argument_names(func)
    return is_attention and given.get("dropout_p", 0.0) == 0.0


class LayoutFreeDraws(DispatchMode):
    """Within it eager ops draw what a program draws for the same seed.

    Each draw moves torch's generator on. Where that is set back, as a checkpoint does
    that runs its forward again in the backward, what was drawn there is drawn again.

    Args:
        seed: 0-d int64, see ``seed_value``.
        draws: of the program, see ``rewrite_draws``.
    """

    def __init__(self, seed: Tensor, draws: Sequence[str]) -> None:
        super().__init__()
        self._seed = seed
        self._left = list(reversed(draws))
        self._streams: dict[bytes, int] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not draws_numbers(func) or _drops_nothing(func, args, kwargs):
            return func(*args, **kwargs)
        eager, stream = _EAGER.get(func), self._next_stream()
        if eager is None or stream is None:
            raise CaptureFailed(
                f"the model calls {func}, which its capture does not draw; verify "
                "cannot give both the same numbers"
            )

        def numbers(shape: Sequence[int], kind: str) -> Tensor:
            return draw(self._seed, shape, stream, kind)

        return eager(numbers, func, args, kwargs)

    def _next_stream(self) -> int | None:
        """Return which draw stands where the generator does; ``None`` for one more."""
        at = torch.get_rng_state().numpy().tobytes()
        if at not in self._streams and self._left:
            self._streams[at] = stream_of(self._left.pop())
        torch.rand((), device="cpu")
        return self._streams.get(at)


def _single(probability: float) -> float:
    """Return what a program compares its numbers with, which are float32, in any dtype.

    >>> found = torch.tensor(0.9, dtype=torch.float32)
    >>> found < 0.9, found.double() < 0.9, found.double() < _single(0.9)
    (tensor(False), tensor(True), tensor(False))
    """
    return struct.unpack("f", struct.pack("f", probability))[0]


def _filled(args: tuple[Any, ...], defaults: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a tensor and its parameters, those that were left out by default."""
    return (*args, *defaults[len(args) - 1 :])


def _fill(numbers: Numbers, func: Any, args: tuple[Any, ...], _: Any) -> Tensor:
    x, low, high = _filled(args, (0.0, 1.0))
    drawn = numbers(x.shape, "uniform").to(x.dtype)
    return x.copy_(drawn * (high - low) + low)


def _fill_normal(numbers: Numbers, func: Any, args: tuple[Any, ...], _: Any) -> Tensor:
    x, mean, std = _filled(args, (0.0, 1.0))
    return x.copy_(numbers(x.shape, "normal").to(x.dtype) * std + mean)


def _new_normal(
    numbers: Numbers, func: Any, args: tuple[Any, ...], kwargs: Any
) -> Tensor:
    mean, std, *sizes = _filled(args, (kwargs.get("std", 1.0),))
    around = [x for x in (mean, std) if isinstance(x, Tensor)]
    shape = torch.broadcast_shapes(*(x.shape for x in around), *sizes)
    dtype = around[0].dtype if around else kwargs.get("dtype")
    drawn = numbers(shape, "normal").to(dtype or torch.get_default_dtype())
    return drawn * std + mean


def _fill_exponential(
    numbers: Numbers, func: Any, args: tuple[Any, ...], kwargs: Any
) -> Tensor:
    x = args[0]
    rate = args[1] if len(args) > 1 else kwargs.get("lambd", 1.0)
    worked_in = torch.promote_types(x.dtype, torch.float32)
    uniform = numbers(x.shape, "uniform").to(worked_in)
    value = (1.0 - uniform).log().neg().clamp_min(LEAST_EXPONENTIAL)
    return x.copy_(value * (1.0 / rate))


def _fill_log_normal(
    numbers: Numbers, func: Any, args: tuple[Any, ...], _: Any
) -> Tensor:
    x, mean, std = _filled(args, (1.0, 2.0))
    worked_in = torch.promote_types(x.dtype, torch.float32)
    return x.copy_((numbers(x.shape, "normal").to(worked_in) * std + mean).exp())


def _fill_bernoulli(
    numbers: Numbers, func: Any, args: tuple[Any, ...], kwargs: Any
) -> Tensor:
    x = args[0]
    p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    return x.copy_(numbers(x.shape, "uniform") < _single(p))


def _new_bernoulli(
    numbers: Numbers, func: Any, args: tuple[Any, ...], _: Any
) -> Tensor:
    x = args[0]
    p = _single(args[1]) if func is aten.bernoulli.p else x
    return (numbers(x.shape, "uniform") < p).to(x.dtype)


def _new(kind: str) -> Callable[..., Tensor]:
    def make(numbers: Numbers, func: Any, args: tuple[Any, ...], kwargs: Any) -> Tensor:
        like = args[0]
        shape = like.shape if isinstance(like, Tensor) else like
        default = like.dtype if isinstance(like, Tensor) else torch.get_default_dtype()
        return numbers(shape, kind).to(kwargs.get("dtype") or default)

    return make


def _new_integers(
    numbers: Numbers, func: Any, args: tuple[Any, ...], kwargs: Any
) -> Tensor:
    like, *bounds = args if func in LIKE else (None, *args)
    low, high, *sizes = bounds if func in WITH_LOW else (0, *bounds)
    (shape,) = sizes if like is None else (like.shape,)
    default = torch.int64 if like is None else like.dtype
    drawn = numbers(shape, "bits") % (high - low) + low
    return drawn.to(kwargs.get("dtype") or default)


def _random_slope(numbers: Numbers, func: Any, args: tuple[Any, ...], _: Any) -> Tensor:
    x, slopes, low, high, is_training = _given_slopes(*args)
    span, lowest = (high - low, low) if is_training else (0.0, 0.5 * (low + high))
    drawn = numbers(x.shape, "uniform").to(x.dtype) * span + lowest
    slopes.copy_(torch.where(x <= 0, drawn, 1.0))
    is_in_place = func is aten.rrelu_with_noise_.default
    return x.mul_(slopes) if is_in_place else x * slopes


def _given_slopes(
    x: Tensor,
    slopes: Tensor,
    low: float = 1.0 / 8,
    high: float = 1.0 / 3,
    is_training: bool = False,
    generator: object = None,
) -> tuple[Tensor, Tensor, float, float, bool]:
    return x, slopes, low, high, is_training


def _new_dropout(
    numbers: Numbers, func: Any, args: tuple[Any, ...], _: Any
) -> tuple[Tensor, Tensor]:
    x, probability, is_training = args
    keep = 1.0 - probability if is_training is not False else 1.0
    mask = numbers(x.shape, "uniform") < _single(keep)
    return x * mask * (1.0 / keep if keep else 0.0), mask


_EAGER: dict[object, Callable[..., Any]] = {
    aten.bernoulli_.float: _fill_bernoulli,
    aten.bernoulli.default: _new_bernoulli,
    aten.bernoulli.p: _new_bernoulli,
    aten.uniform_.default: _fill,
    aten.normal_.default: _fill_normal,
    aten.normal.Tensor_float: _new_normal,
    aten.normal.float_Tensor: _new_normal,
    aten.normal.Tensor_Tensor: _new_normal,
    aten.normal.float_float: _new_normal,
    aten.exponential_.default: _fill_exponential,
    aten.log_normal_.default: _fill_log_normal,
    aten.rand.default: _new("uniform"),
    aten.rand.generator: _new("uniform"),
    aten.rand_like.default: _new("uniform"),
    aten.randn.default: _new("normal"),
    aten.randn.generator: _new("normal"),
    aten.randn_like.default: _new("normal"),
    aten.randint.default: _new_integers,
    aten.randint.generator: _new_integers,
    aten.randint.low: _new_integers,
    aten.randint.low_generator: _new_integers,
    **dict.fromkeys(LIKE, _new_integers),
    aten.native_dropout.default: _new_dropout,
    aten.rrelu_with_noise.default: _random_slope,
    aten.rrelu_with_noise_.default: _random_slope,
    aten.randperm.default: eager_permutation,
    aten.randperm.generator: eager_permutation,
    aten.multinomial.default: eager_multinomial,
}
