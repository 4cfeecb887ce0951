"""What a program keeps between steps, and how it leaves and enters it.

State dicts speak the names and the logical shapes of the original model; here live
the shards.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from partita.compiler.errors import BadOptions
from partita.compiler.ir.sbp import Placement
from partita.runtime.agree import everyone_checks
from partita.runtime.dtensors import check_rank, check_tensor, to_dtensor, to_shard
from partita.runtime.groups import Groups
from partita.runtime.inventory import Kept, is_extra_state


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


class IncompatibleKeys(NamedTuple):
    """The names that a state dict lacks, and those that the model does not have."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_state_dict(
    held: Sequence[Held],
    state: Mapping[str, Any],
    elsewhere: Collection[str] = (),
    *,
    strict: bool = True,
) -> IncompatibleKeys:
    """Write the values of ``state``, DTensors or whole tensors, into the shards.

    All ranks call it. ``elsewhere`` are the names of what other stages hold; it may be
    there or not.

    Returns:
        What is missing here, and what is unknown; nothing where it is ``strict``.

    Raises:
        BadOptions: on every rank, before anything is written, naming what does not fit,
            or, where it is ``strict``, what the state lacks or has too many.
    """
    known = {name for entry in held for name in entry.saved}.union(elsewhere)
    found = IncompatibleKeys(
        [e.name for e in held if e.saved and not any(n in state for n in e.saved)],
        [n for n in state if n not in known and not is_extra_state(n)],
    )
    given = [
        (entry, name)
        for entry in held
        for name in [n for n in entry.saved if n in state][:1]
    ]

    def check() -> None:
        if strict and found.unexpected_keys:
            name = found.unexpected_keys[0]
            raise BadOptions(f"state dict: the model has no {name!r}")
        if strict and found.missing_keys:
            raise BadOptions(f"state dict: {found.missing_keys[0]!r} is missing")
        for entry, name in given:
            check_value(f"state dict: {name!r}", state[name], entry)

    everyone_checks(check)
    for entry, name in given:
        write(entry.shard, state[name], entry.placement, entry.groups)
    return found


def check_value(what: str, value: Any, entry: Held) -> None:
    """Check that ``value`` is a tensor of the logical shape of ``entry``.

    Raises:
        BadOptions: naming both shapes; for no tensor, and the shard of another rank.
    """
    check_tensor(what, value)
    if tuple(value.shape) != entry.shape:
        raise BadOptions(
            f"{what} has shape {list(value.shape)}; want {list(entry.shape)}"
        )
    if isinstance(value, DTensor):
        check_rank(what, value)


def write(
    shard: torch.Tensor, value: torch.Tensor, placement: Placement, groups: Groups
) -> None:
    """Write this rank's part of a logical ``value`` into ``shard``."""
    found = to_shard(value, placement, groups)
    if found.untyped_storage().data_ptr() == shard.untyped_storage().data_ptr():
        found = found.clone()  # torch refuses to copy memory to itself by other strides
    with torch.no_grad():
        shard.copy_(found)
