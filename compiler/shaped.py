"""What an op makes of tensors of known shapes, without their values.

A program asks the same of an op over and over: of equal layers, on ranks that hold as
much, in plans that differ elsewhere. Each question is put to torch once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import BuiltinFunctionType
from typing import Any, NamedTuple, cast

import torch


class Shaped(NamedTuple):
    """Stands for a tensor: all that is known of it before a program runs.

    >>> x = Shaped((2, 3), (3, 1), torch.float32)
    >>> result_of(torch.ops.aten.t.default, (x,), {}, torch.device("meta"))
    Shaped(shape=(3, 2), strides=(1, 3), dtype=torch.float32)
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


class _Constant(NamedTuple):
    """An argument that is no tensor; ``1``, ``1.0`` and ``True`` are three."""

    value: object
    type: type


def shaped(tensor: torch.Tensor) -> Shaped:
    """Return what stands for ``tensor``."""
    return Shaped(tuple(tensor.shape), tensor.stride(), tensor.dtype)


def result_of(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    device: torch.device,
) -> Any:
    """Return what ``target`` makes of arguments in which ``Shaped`` stand for tensors.

    Args:
        target: an op, or one of Python's own, of numbers and tuples.
        args: its arguments.
        kwargs: those by name.
        device: where the tensors would be, whose kernels decide.
    """
    if isinstance(target, BuiltinFunctionType):
        return target(*args, **kwargs)
    names = tuple(kwargs)
    values = tuple(_described(value) for value in kwargs.values())
    return _made(target, _described(args), names, values, device)


@lru_cache(maxsize=1 << 16)
def _made(
    target: Callable[..., Any],
    args: tuple[Any, ...],
    names: tuple[str, ...],
    values: tuple[Any, ...],
    device: torch.device,
) -> Any:
    given = _given(args, device)
    named = dict(zip(names, _given(values, device), strict=True))
    return _shapes(target(*given, **named))


def _described(value: Any) -> Any:
    """Return ``value`` as something that can be compared, lists as tuples."""
    if isinstance(value, Shaped):
        return value
    if isinstance(value, list | tuple):
        return tuple(_described(part) for part in cast("list[Any]", value))
    return _Constant(value, type(value))


def _given(value: Any, device: torch.device) -> Any:
    """Undo ``_described``, with tensors on ``device``."""
    if isinstance(value, Shaped):
        return torch.empty_strided(
            value.shape, value.strides, dtype=value.dtype, device=device
        )
    if isinstance(value, _Constant):
        return value.value
    return [_given(part, device) for part in value]


def _shapes(value: Any) -> Any:
    """Return what stands for what an op returned."""
    if isinstance(value, torch.Tensor):
        return shaped(value)
    if isinstance(value, list | tuple):
        return tuple(_shapes(part) for part in cast("list[Any]", value))
    return value
