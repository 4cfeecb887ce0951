"""The tensors and children that a module holds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.modules.batchnorm import (
    _BatchNorm,  # pyright: ignore[reportPrivateUsage]
)
from torch.utils import _pytree as pytree

BatchNorm = _BatchNorm
"""What batch norms of any number of dims are."""


def fake_copy(
    module: torch.nn.Module,
) -> tuple[torch.nn.Module, AbstractContextManager[Any]]:
    """Return ``module`` around CPU tensors without values, and the mode to make such.

    What is traced then is the same wherever the module is. Traced on meta itself, a
    constant of the model's code would lose its value; on another device some ops take
    other ways. Tensors that are neither parameter nor buffer keep their values.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    memo: dict[int, Any] = {}
    with mode:
        for tensor in (*module.parameters(), *module.buffers()):
            fake = torch.empty_like(tensor, device="cpu", requires_grad=False)
            if isinstance(tensor, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
            memo[id(tensor)] = fake
    parts = [list(vars(child).values()) for child in module.modules()]
    for value in filter(torch.is_tensor, pytree.tree_leaves(parts)):
        own = value.detach()  # an earlier call may have left it a history
        if id(value) not in memo and not own.is_meta:
            memo[id(value)] = own.cpu()
        elif id(value) not in memo:
            with mode:
                memo[id(value)] = torch.empty_like(own, device="cpu")
    return copy.deepcopy(module, memo), mode


def tables_of(module: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables of the parameters and buffers that ``module`` itself holds."""
    return vars(module)["_parameters"], vars(module)["_buffers"]


def own_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and buffers that ``module`` itself holds, by local name."""
    items = (item for table in tables_of(module) for item in table.items())
    return {name: tensor for name, tensor in items if tensor is not None}


def with_parts(
    module: torch.nn.Module,
    tensor: Callable[[torch.Tensor], torch.Tensor],
    child: Callable[[str, torch.nn.Module], torch.nn.Module],
) -> torch.nn.Module:
    """Return a module like ``module`` around other tensors and other children.

    Whatever is then done to these leaves ``module`` untouched.
    """

    def table(name: str, change: Callable[[str, Any], Any]) -> dict[str, Any]:
        parts = vars(module)[name]
        return {key: x if x is None else change(key, x) for key, x in parts.items()}

    other = module.__new__(type(module))
    other.__dict__.update(
        vars(module),
        _parameters=table("_parameters", lambda _, x: tensor(x)),
        _buffers=table("_buffers", lambda _, x: tensor(x)),
        _modules=table("_modules", child),
    )
    return other
