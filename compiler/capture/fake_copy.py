"""Copies of modules around tensors without values, to trace in their place."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager
from typing import Any

import torch

from partita.compiler.capture.torch_private import FakeMode, pytree


def fake_copy(
    module: torch.nn.Module,
) -> tuple[torch.nn.Module, AbstractContextManager[Any]]:
    """Return ``module`` around CPU tensors without values, and the mode to make such.

    What is traced then is the same wherever the module is. Traced on meta itself, a
    constant of the model's code would lose its value; on another device some ops take
    other ways. Tensors that are neither parameter nor buffer keep their values.
    """
    mode = FakeMode(allow_non_fake_inputs=True)
    memo: dict[int, Any] = {}
    with mode:
        for tensor in (*module.parameters(), *module.buffers()):
            fake = torch.empty_like(tensor, device="cpu", requires_grad=False)
            if isinstance(tensor, torch.nn.Parameter):
                fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
            memo[id(tensor)] = fake
    for value in tensors_in(module):
        own = value.detach()  # an earlier call may have left it a history
        if id(value) not in memo and not own.is_meta:
            memo[id(value)] = own.cpu()
        elif id(value) not in memo:
            with mode:
                memo[id(value)] = torch.empty_like(own, device="cpu")
    return copy.deepcopy(module, memo), mode


def tensors_in(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return all that a module and its parts hold as attributes, lists and the like."""
    parts = [list(vars(part).values()) for part in module.modules()]
    return [x for x in pytree.tree_leaves(parts) if isinstance(x, torch.Tensor)]
