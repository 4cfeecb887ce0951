"""What a model keeps: its parameters and buffers, each once, with all their names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from partita.compiler.ir.tensor_type import TensorType


@dataclass(frozen=True)
class Kept:
    """One parameter or buffer of a model.

    Attributes:
        names: its name, then those of modules that share it.
        tensor: the model's own; on the meta device it has no values.
        saved: the names under which the model's state dict has it.
    """

    names: tuple[str, ...]
    tensor: torch.Tensor
    saved: tuple[str, ...]

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]

    @property
    def type(self) -> TensorType:
        """Its logical shape and dtype."""
        return TensorType(tuple(self.tensor.shape), self.tensor.dtype)

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter, not a buffer."""
        return isinstance(self.tensor, nn.Parameter)


def is_extra_state(name: str) -> bool:
    """Whether a state dict has under ``name`` what a module's get_extra_state gives.

    It belongs to the module, of which a program keeps parameters and buffers alone.
    """
    return name.rpartition(".")[2] == "_extra_state"


def take_inventory(model: nn.Module) -> tuple[Kept, ...]:
    """Return the parameters, then the buffers, in the order of ``model``."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(tensor), []).append(name)
        tensors[id(tensor)] = tensor
    saved = set(model.state_dict(keep_vars=True))
    return tuple(
        Kept(
            names=tuple(names[key]),
            tensor=tensor,
            saved=tuple(name for name in names[key] if name in saved),
        )
        for key, tensor in tensors.items()
    )
