"""What a program keeps between steps, and how it leaves and enters it.

State dicts speak the names and the logical shapes of the original model; here live
the shards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from partita.compiler.errors import BadOptions
from partita.compiler.ir.sbp import Placement
from partita.runtime.dtensors import to_dtensor, to_shard
from partita.runtime.groups import Groups
from partita.runtime.inventory import Kept


@dataclass(frozen=True)
class Held:
    """A parameter or buffer: this rank's shard of it, and what it is a shard of.

    ``names``, ``saved`` and ``shape`` are the original model's, as in ``Kept``;
    ``groups`` are the ranks that hold the rest of it.
    """

    names: tuple[str, ...]
    saved: tuple[str, ...]
    shape: tuple[int, ...]
    placement: Placement
    shard: torch.Tensor
    groups: Groups

    @classmethod
    def of(
        cls, kept: Kept, placement: Placement, shard: torch.Tensor, groups: Groups
    ) -> Held:
        """Hold ``shard`` of what the model keeps; a parameter becomes one."""
        if kept.is_parameter:
            shard = nn.Parameter(shard, requires_grad=kept.tensor.requires_grad)
        shape = kept.type.shape
        return cls(kept.names, kept.saved, shape, placement, shard, groups)

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names[0]


def state_dict(held: Sequence[Held]) -> dict[str, torch.Tensor]:
    """Return all that the model saves, as DTensors, tied names too."""
    state: dict[str, torch.Tensor] = {}
    for entry in held:
        if entry.saved:
            value = to_dtensor(entry.shard, entry.shape, entry.placement, entry.groups)
            state.update(dict.fromkeys(entry.saved, value))
    return state


def load_state_dict(
    held: Sequence[Held], state: Mapping[str, Any], elsewhere: Collection[str] = ()
) -> None:
    """Write the values of ``state``, DTensors or whole tensors, into the shards.

    ``elsewhere`` are the names of what other stages hold; it may be there or not.

    Raises:
        BadOptions: naming what the state lacks or has too many, or its wrong shape.
    """
    known = {name for entry in held for name in entry.saved}
    unknown = [n for n in state if n not in known and n not in elsewhere]
    if unknown:
        raise BadOptions(f"state dict: the model has no {unknown[0]!r}")
    for entry in held:
        given = [name for name in entry.saved if name in state]
        if entry.saved and not given:
            raise BadOptions(f"state dict: {entry.name!r} is missing")
        for name in given[:1]:
            check_shape(f"state dict: {name!r}", state[name], entry)
            write(entry.shard, state[name], entry.placement, entry.groups)


def check_shape(what: str, value: torch.Tensor, entry: Held) -> None:
    """Check that ``value`` has the logical shape of ``entry``.

    Raises:
        BadOptions: naming both shapes.
    """
    if tuple(value.shape) != entry.shape:
        raise BadOptions(
            f"{what} has shape {list(value.shape)}; want {list(entry.shape)}"
        )


def write(
    shard: torch.Tensor, value: torch.Tensor, placement: Placement, groups: Groups
) -> None:
    """Write this rank's part of a logical ``value`` into ``shard``."""
    found = to_shard(value, placement, groups)
    if found.untyped_storage().data_ptr() == shard.untyped_storage().data_ptr():
        found = found.clone()  # torch refuses to copy memory to itself by other strides
    with torch.no_grad():
        shard.copy_(found)
