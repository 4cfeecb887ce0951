"""One graph of forward and backward: of a module as it is, or as export returned it."""

from __future__ import annotations

import torch
from torch import fx

from partita.compiler.capture.decompositions import FROM_TORCH, OWN
from partita.compiler.capture.grouped import grouped_products
from partita.compiler.capture.matrix_checks import unordered_checks
from partita.compiler.capture.recurrent import dropping_between_layers
from partita.compiler.capture.torch_private import (
    export_joint,
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
    own = {**OWN, **grouped_products()}
    with (
        torch.set_grad_enabled(train),
        without_mkldnn(),
        dropping_between_layers(),
        unordered_checks(),
        without_code(),
    ):
        return export_joint(module, tensors, FROM_TORCH, own)
