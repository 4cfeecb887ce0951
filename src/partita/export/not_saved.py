"""The tensors that a program reads and no state dict of its model holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from partita.compiler.errors import BadOptions
from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind
from partita.compiler.plan.plan import Plan


def buffers_not_saved(model: torch.nn.Module, plan: Plan) -> dict[str, torch.Tensor]:
    """Return a plan's buffers that are not persistent, by name."""
    saved = model.state_dict()
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name not in saved and name in plan.buffers
    }


def constants_of(locals_: Iterable[LocalProgram]) -> dict[str, torch.Tensor]:
    """Return the tensors that the model's code makes, by name."""
    return {
        role.name: local.constants[role.name]
        for local in locals_
        for role in local.inputs
        if role.kind is InputKind.CONSTANT
    }


def with_values(
    tensors: Mapping[str, torch.Tensor], to: str
) -> Mapping[str, torch.Tensor]:
    """Return tensors that are to stand in a file of a format.

    Raises:
        BadOptions: when one has no values.
    """
    for name, tensor in tensors.items():
        if tensor.is_meta:
            raise BadOptions(
                f"--to {to}: {name} has no values on the meta device; want a TARGET "
                "whose model has them"
            )
    return tensors
