"""Tensors of small integers, and calls on them, for the samples of rules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from partita.testing.prover import Sample

_generator = torch.Generator().manual_seed(0)


def ints(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=_generator)


def x(*shape: int) -> Tensor:
    return ints(-3, 4, *shape).double()


def positive(*shape: int) -> Tensor:
    return ints(1, 6, *shape).double()


def fraction(*shape: int) -> Tensor:
    return ints(-3, 4, *shape).double() / 4


def mask(*shape: int) -> Tensor:
    return ints(0, 2, *shape).bool()


def call(op: str, *args: Any, **kwargs: Any) -> Sample:
    name = op if op.startswith("partita") else f"aten.{op}"
    return Sample(name if name.count(".") == 2 else f"{name}.default", args, kwargs)
