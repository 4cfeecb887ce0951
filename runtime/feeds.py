"""What enters a local program: one value per placeholder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from partita.compiler.ir.local_program import LocalProgram
from partita.compiler.ir.program import InputKind, InputRole
from partita.compiler.ir.tensor_type import TensorType
from partita.runtime.shards import take_shard

FeedKey = tuple[InputKind, str]
Feeds = Mapping[FeedKey, torch.Tensor | int]
"""Local values by the kind and the name of their input role."""

OwnFeeds = dict[FeedKey, torch.Tensor | int] | dict[FeedKey, torch.Tensor]
"""Feeds that one run has for itself, and empties."""

FeedsOf = Callable[[int, int], Feeds]
"""From stage and microbatch to what enters that run."""


def own_feeds(
    local: LocalProgram, device: torch.device | None = None
) -> dict[FeedKey, torch.Tensor | int]:
    """Return what a program brings itself.

    These are coordinates, constants, a loss scale of 1, the seed 0 and the number of
    the first microbatch.

    Without a ``device`` the constants stay where they are.
    """
    feeds: dict[FeedKey, torch.Tensor | int] = {}
    entries = zip(local.inputs, local.input_types, local.input_placements, strict=True)
    for role, type_, placement in entries:
        key = (role.kind, role.name)
        if role.kind == InputKind.COORDINATE:
            feeds[key] = local.coordinates[local.mesh.axis(role.name)]
        elif role.kind == InputKind.CONSTANT:
            assert placement is not None
            constant = local.constants[role.name]
            shard = take_shard(constant, placement, local.mesh, local.coordinates)
            feeds[key] = shard if device is None else shard.to(device)
        elif role.kind in (InputKind.SEED, InputKind.MICROBATCH):
            feeds[key] = torch.zeros((), dtype=torch.int64, device=device)
        elif role.kind == InputKind.LOSS_SCALE:
            assert type_ is not None
            feeds[key] = torch.ones((), dtype=type_.dtype, device=device)
    return feeds


def part_of_batch(
    local: LocalProgram, values: Mapping[FeedKey, torch.Tensor], number: int
) -> dict[FeedKey, torch.Tensor]:
    """Return whole values with a microbatch's part of those that it takes in parts."""
    inputs = zip(local.inputs, local.input_types, strict=True)
    return in_parts(values, number, inputs)


def in_parts(
    values: Mapping[FeedKey, torch.Tensor],
    number: int,
    inputs: Iterable[tuple[InputRole, TensorType | None]],
) -> dict[FeedKey, torch.Tensor]:
    """Return the same for inputs of a program, each with the type of its part."""
    found = dict(values)
    for role, type_ in inputs:
        if role.kind is InputKind.MICROBATCH:
            found[role.kind, role.name] = torch.tensor(number)
        elif role.kind is InputKind.INPUT and (role.kind, role.name) in values:
            key = (role.kind, role.name)
            assert type_ is not None
            if tuple(values[key].shape) != type_.shape:
                size = type_.shape[0]
                found[key] = values[key].narrow(0, number * size, size)
    return found


def shards_of(
    local: LocalProgram, values: Mapping[FeedKey, torch.Tensor]
) -> dict[FeedKey, torch.Tensor]:
    """Return this rank's shards of the whole tensors that enter the program."""
    feeds: dict[FeedKey, torch.Tensor] = {}
    for role, placement in zip(local.inputs, local.input_placements, strict=True):
        key = (role.kind, role.name)
        if key in values and placement is not None:
            feeds[key] = take_shard(
                values[key], placement, local.mesh, local.coordinates
            )
    return feeds


def arguments(local: LocalProgram, *feeds: Feeds) -> list[torch.Tensor | int]:
    """Return the values of the placeholders in order; the first feeds win."""
    fed: dict[FeedKey, torch.Tensor | int] = {}
    for part in reversed(feeds):
        fed.update(part)
    try:
        return [fed[role.kind, role.name] for role in local.inputs]
    except KeyError as error:
        kind, name = error.args[0]
        raise AssertionError(f"nothing is fed to the {kind} {name!r}") from error
