"""Modes in which ops run otherwise."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

DispatchMode = TorchDispatchMode
"""The class of modes that see every op that eager code runs."""


def below_autograd() -> AbstractContextManager[None]:
    """Return a block in which ops go past autograd: a third less for a small one."""
    return vars(torch)["_C"]._AutoDispatchBelowAutograd()


def fake_tensor_mode() -> AbstractContextManager[Any]:
    """Return a mode in which tensors have shapes and dtypes, but no values."""
    return FakeTensorMode()


FakeMode = FakeTensorMode
"""A mode in which tensors have no values."""


def static_fake_mode() -> FakeMode:
    """Return a mode in which tensors have types and strides, known ones, no values."""
    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)
