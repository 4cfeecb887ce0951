"""Experiments with a call of which nothing but the types of its tensors is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor

from partita.compiler.ir.tensor_type import TensorType
from partita.compiler.rules.experiment import REFUSALS, Experiment, Results, random
from partita.compiler.rules.rule import Call

_NUM_DRAWS = 5


def op_of(name: str) -> Any:
    """Return an op by the name that torch prints; ``None`` where there is none."""
    try:
        return reduce(getattr, name.split("."), torch.ops)
    except AttributeError:
        return None


def experiments_of(call: Call) -> list[Experiment]:
    """Return the call on several draws of its operands.

    None if it does not run on a CPU, not twice to the same results of the stated
    shapes, or changes its operands.
    """
    sizes = [size for t in call.operands for size in t.shape if size > 1]
    for dtype in (torch.float64, torch.float32):
        for high in (min(sizes, default=2), 2):  # integers are indices of something
            draw = partial(_experiment, call, dtype=dtype, high=high)
            try:
                found = [draw(seed) for seed in range(_NUM_DRAWS)]
            except REFUSALS:
                continue
            with suppress(*REFUSALS):  # an op may refuse numbers that are none
                found.append(draw(_NUM_DRAWS, with_nan=True))
            if all(map(_is_pure, found)) and all(_has_shapes(x, call) for x in found):
                return found
    return []


def _experiment(
    call: Call, seed: int, dtype: torch.dtype, high: int, with_nan: bool = False
) -> Experiment:
    op = op_of(call.op)
    generator = torch.Generator().manual_seed(seed)

    def run(tensors: tuple[Tensor, ...], _: object) -> Results:
        rest = iter(tensors)
        args = tuple(_with_tensors(arg, rest) for arg in call.args)
        kwargs = {name: _with_tensors(arg, rest) for name, arg in call.kwargs}
        result = op(*args, **kwargs)
        results = result if isinstance(result, tuple | list) else (result,)
        return tuple(x if isinstance(x, Tensor) else None for x in results)

    tensors = tuple(random(t, generator, seed, high, dtype) for t in call.operands)
    if with_nan:
        tensors = tuple(map(_with_nan, tensors))
    return Experiment(run, tensors, seed)


def _with_nan(tensor: Tensor) -> Tensor:
    """Return a copy in which every seventh number is none."""
    tensor = tensor.clone()
    if tensor.is_floating_point():
        tensor.view(-1)[3::7] = float("nan")
    return tensor


def tell_apart(experiments: Sequence[Experiment]) -> bool:
    """Whether every result changes between draws: of a constant everything holds."""
    first, *others = (experiment.want for experiment in experiments)
    return all(
        x is None or not x.numel() or any(differ(x, other[index]) for other in others)
        for index, x in enumerate(first)
    )


def differ(x: Tensor, y: Tensor | None) -> bool:
    """Whether results of one shape differ in any number; NaN equals NaN."""
    return y is None or not torch.allclose(x, y, 0, 0, equal_nan=True)


def _with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    if isinstance(value, TensorType):
        return next(tensors)
    if isinstance(value, tuple):
        return [_with_tensors(item, tensors) for item in value]
    return value


def _is_pure(experiment: Experiment) -> bool:
    """Whether the call gives the same again, and leaves its operands as they are."""
    before = [x.clone() for x in experiment.tensors]
    again = experiment.run(experiment.tensors, ())
    same = [*zip(before, experiment.tensors, strict=True)]
    for x, y in zip(experiment.want, again, strict=True):
        if x is not None and y is not None:
            same.append((x, y))
    return all(torch.allclose(x, y, 0, 0, equal_nan=True) for x, y in same)


def _has_shapes(experiment: Experiment, call: Call) -> bool:
    shapes = [None if x is None else tuple(x.shape) for x in experiment.want]
    return shapes == [None if t is None else t.shape for t in call.results]
