"""One graph of forward and backward: of a module as it is, or as export returned it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx

from partita.compiler.capture.decompositions import FROM_TORCH, OWN
from partita.compiler.capture.grouped import grouped_products
from partita.compiler.capture.matrix_checks import unordered_checks
from partita.compiler.capture.pure import trace_pure
from partita.compiler.capture.recurrent import dropping_between_layers
from partita.compiler.capture.torch_private import (
    export_joint,
    get_decompositions,
    without_code,
    without_mkldnn,
)


def joint_of(
    module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], train: bool
) -> fx.GraphModule:
    """Return the graph of ``module``, its ops taken apart as Partita knows them.

    Args:
        module: returns the loss and outputs of ``tensors``.
        tensors: what it is called with.
        train: whether there is a backward.

    Raises:
        Exception: any, where the module cannot be traced.
    """
    with _tracing(train) as taken_apart, _put_back(module):
        return export_joint(module, tensors, taken_apart)


def joint_without_writes(
    module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], train: bool
) -> fx.GraphModule:
    """Return what ``joint_of`` returns, sooner.

    Raises:
        WritesFound: where ``module`` writes to a tensor.
        Exception: any other, where the module cannot be traced.
    """
    with _tracing(train) as taken_apart, _put_back(module):
        return trace_pure(module, tensors, taken_apart, train)


@contextmanager
def _tracing(train: bool) -> Generator[dict[Any, Callable[..., Any]]]:
    """Yield how ops are taken apart in the traces within it."""
    table: dict[Any, Callable[..., Any]] = get_decompositions(list(FROM_TORCH))
    with (
        torch.set_grad_enabled(train),
        without_mkldnn(),
        dropping_between_layers(),
        unordered_checks(),
        without_code(),
    ):
        yield {**table, **OWN, **grouped_products()}


@contextmanager
def _put_back(module: torch.nn.Module) -> Generator[None]:
    """After it the parts of ``module`` have the parameters and buffers of before.

    torch puts others in their place for a trace. What stands in a part that has two
    names it replaces twice, and puts back what it found the second time.
    """
    held = [
        (part, name, tensor)
        for part in module.modules()
        for own in (part.named_parameters, part.named_buffers)
        for name, tensor in own(recurse=False, remove_duplicate=False)
    ]
    try:
        yield
    finally:
        for part, name, tensor in held:
            if getattr(part, name) is not tensor:
                setattr(part, name, tensor)
