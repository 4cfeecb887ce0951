"""Choices that are drawn: an order of all, or some of several by their weights.

They are made of uniform numbers that do not know the layout (random_numbers.py): an
order is that of such numbers; one of several, or some that all differ, have the largest
quotients of weight and exponential number (torch's own way); where one may come again,
a number falls into one of the intervals that the weights are laid out in. Each choice
has two forms: the calls of a program, and what the user's eager model does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from partita.compiler.capture.draw_writer import DrawWriter, argument_of
from partita.compiler.ir.program import type_of, value_of
from partita.compiler.ir.tensor_type import TensorType

aten = torch.ops.aten

LEAST_EXPONENTIAL = 2.0**-24
"""What an exponential draw of rate 1 is at least: models take its logarithm.

Torch's own is half of float32's epsilon too (ATen/core/TransformationHelper.h).
"""

Numbers = Callable[[Sequence[int], str], Tensor]


# An order


def permutation(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    """Write ``randperm``."""
    keys = write.numbers(type_.shape, "bits")
    types = TensorType(type_.shape, torch.int64), TensorType(type_.shape, torch.int64)
    order = write.item(aten.sort.stable, (keys,), types, 1, stable=True, dim=0)
    return write.cast(order, type_.dtype)


def eager_permutation(
    numbers: Numbers, func: Any, args: tuple[Any, ...], kwargs: Any
) -> Tensor:
    """Return what the program's ``randperm`` does."""
    order = numbers((args[0],), "bits").sort(stable=True).indices
    return order.to(kwargs.get("dtype") or torch.int64)


# Some of several


def multinomial(write: DrawWriter, node: fx.Node, type_: TensorType) -> fx.Node:
    """Write ``multinomial``."""
    (weights, count), comes_again = (
        node.args[:2],
        argument_of(node, 2, "replacement", 0),
    )
    assert isinstance(weights, fx.Node)
    assert isinstance(count, int)
    given = type_of(value_of(weights))
    worked_in = torch.promote_types(given.dtype, torch.float32)
    given = TensorType(given.shape, worked_in)
    weights = write.cast(weights, worked_in)
    if comes_again and count > 1:
        return _of_intervals(write, weights, given, type_)
    numbers = write.cast(write.numbers(given.shape, "uniform"), worked_in)
    left = write.scaled(numbers, -1.0, 1.0)
    log = write.call(aten.log.default, (left,), given)
    negated = write.call(aten.neg.default, (log,), given)
    drawn = write.call(aten.clamp_min.default, (negated, LEAST_EXPONENTIAL), given)
    quotients = write.call(aten.div.Tensor, (weights, drawn), given)
    if count == 1:
        return write.call(aten.argmax.default, (quotients, -1, True), type_)
    types = TensorType(type_.shape, worked_in), type_
    return write.item(aten.topk.default, (quotients, count, -1), types, 1)


def _of_intervals(
    write: DrawWriter, weights: fx.Node, given: TensorType, type_: TensorType
) -> fx.Node:
    dim, last = given.ndim - 1, given.shape[-1] - 1
    ends = write.call(aten.cumsum.default, (weights, dim), given)
    one = TensorType((*given.shape[:-1], 1), given.dtype)
    bounds = dim, last, last + 1, 1
    total = write.call(aten.slice.Tensor, (ends, *bounds), one)
    drawn = TensorType(type_.shape, given.dtype)
    numbers = write.cast(write.numbers(type_.shape, "uniform"), given.dtype)
    places = write.call(aten.mul.Tensor, (numbers, total), drawn)
    found = write.call(aten.searchsorted.Tensor, (ends, places), type_, right=True)
    return write.call(aten.clamp_max.default, (found, last), type_)


def eager_multinomial(
    numbers: Numbers, func: Any, args: tuple[Any, ...], kwargs: Any
) -> Tensor:
    """Return what the program's ``multinomial`` does."""
    weights, count = args[:2]
    comes_again = args[2] if len(args) > 2 else kwargs.get("replacement", False)
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    if comes_again and count > 1:
        ends = weights.cumsum(-1)
        drawn = numbers((*weights.shape[:-1], count), "uniform").to(weights.dtype)
        found = torch.searchsorted(ends, drawn * ends[..., -1:], right=True)
        return found.clamp_max(weights.shape[-1] - 1)
    uniform = numbers(weights.shape, "uniform").to(weights.dtype)
    drawn = (1.0 - uniform).log().neg().clamp_min(LEAST_EXPONENTIAL)
    return (weights / drawn).topk(count, -1).indices
