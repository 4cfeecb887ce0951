"""Gradients on local shards: accumulation, and the norm of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, cast

import torch
from torch import nn

from partita.compiler.capture.torch_private import GRADIENT_HOOKS, LEFT_HOOKS
from partita.compiler.ir.sbp import Broadcast
from partita.runtime.shard_gradient import (
    Part,
    ShardGradient,
    check_order,
    over_all_ranks,
)
from partita.runtime.state import Held

_MOST = 0.9
"""Of a storage: what gradients fill at least; the rest is held along with them."""


def accumulate(
    parameter: nn.Parameter, gradient: torch.Tensor, part: Part | None = None
) -> None:
    """Add ``gradient`` to ``parameter.grad``; it becomes it where there is none yet.

    Where it is a part of the whole one, ``part`` says of which. Hooks of the parameter
    are called as autograd calls them.
    """
    if hooks := _hooks(parameter, GRADIENT_HOOKS):
        gradient = _through(hooks, gradient, part)
    if parameter.grad is not None:
        gradient = parameter.grad.add_(gradient)
    if part is not None and type(gradient) is torch.Tensor:  # no fake one
        gradient = ShardGradient.of(gradient, part)
    if gradient is not parameter.grad:
        parameter.grad = gradient
    if hooks := _hooks(parameter, LEFT_HOOKS):
        with torch.no_grad():
            for hook in hooks:
                hook(parameter)


@torch.no_grad()
def _through(
    hooks: Sequence[Callable[..., Any]], gradient: torch.Tensor, part: Part | None
) -> torch.Tensor:
    """Return what hooks make of a gradient, in memory that they cannot have kept."""
    for hook in hooks:
        changed = hook(gradient if part is None else ShardGradient.of(gradient, part))
        gradient = gradient if changed is None else changed
    return gradient.clone()


def _hooks(parameter: nn.Parameter, kept_in: str) -> Sequence[Callable[..., Any]]:
    found: Mapping[int, Callable[..., Any]] | None = getattr(parameter, kept_in)
    return () if not found else tuple(found.values())


def owned(
    made: Sequence[tuple[torch.Tensor, nn.Parameter]], taken: set[int]
) -> list[torch.Tensor]:
    """Return gradients that may be written to: dense, each with memory of its own.

    A graph may return one tensor as two gradients, an input, or a view of something
    larger: these are copied, but for parts of a storage that gradients share.

    Args:
        made: each gradient, and the parameter that it is of.
        taken: the addresses of the storages that others use; those of the gradients
            are added.
    """
    found: list[torch.Tensor] = []
    shared: dict[int, set[int]] | None = None  # looked for where there are parts at all
    for gradient, parameter in made:
        storage = gradient.untyped_storage()
        address = storage.data_ptr()
        is_like = gradient.stride() == parameter.stride()
        if storage.nbytes() == gradient.nbytes:
            is_own = is_like and address not in taken
        else:
            if shared is None:
                shared = shared_storages([gradient for gradient, _ in made], taken)
            parts = shared.get(address, set())
            is_own = is_like and gradient.data_ptr() in parts
            if is_own:
                parts.discard(gradient.data_ptr())
        if is_own:
            taken.add(address)
            found.append(gradient)
        else:
            copy = torch.empty_like(parameter, requires_grad=False).copy_(gradient)
            taken.add(copy.untyped_storage().data_ptr())
            found.append(copy)
    return found


def shared_storages(
    gradients: Iterable[torch.Tensor], taken: Collection[int]
) -> dict[int, set[int]]:
    """Return the storages that several gradients all but fill, each a part of its own.

    So do those of a bucket. What else was sent in it is read before the step ends: a
    gradient that rows of a table are added up to, say.

    Args:
        gradients: all of them; those that fill a storage alone are none of the parts.
        taken: the addresses of storages that others use.

    Returns:
        By the address of the storage, the addresses of the parts.
    """
    found: dict[int, dict[int, int]] = {}
    sizes: dict[int, int] = {}
    for gradient in gradients:
        storage = gradient.untyped_storage()
        if storage.nbytes() == gradient.nbytes:
            continue
        sizes[storage.data_ptr()] = storage.nbytes()
        parts = found.setdefault(storage.data_ptr(), {})
        parts[gradient.data_ptr()] = gradient.nbytes
    return {
        address: set(parts)
        for address, parts in found.items()
        if address not in taken
        and len(parts) > 1
        and _MOST * sizes[address] <= sum(parts.values()) <= sizes[address]
        and all(
            start + parts[start] <= following
            for start, following in pairwise(sorted(parts))
        )
    }


def clip_grad_norm(
    held: Sequence[Held],
    device: torch.device,
    max_norm: float,
    norm_type: float = 2.0,
) -> torch.Tensor:
    """Clip as ``torch.nn.utils.clip_grad_norm_`` does on the whole model.

    Each logical element counts once: shards are added up over the axes that split,
    copies are counted on the first rank of their axis alone.

    Returns:
        The norm before clipping, the same on every rank.

    Raises:
        BadOptions: for a norm below 1.
    """
    check_order(norm_type)
    parameters = [cast(nn.Parameter, entry.shard) for entry in held]
    counted = [
        local_gradient(gradient)
        for entry in held
        if (gradient := entry.shard.grad) is not None
        and entry.shard.numel() > 0
        and _is_first_copy(entry)
    ]
    nothing = torch.zeros((), device=device)
    norm = torch.nn.utils.get_total_norm(counted or [nothing], norm_type)
    total = over_all_ranks(norm.to(device), norm_type)
    # The ranks must agree on the dtype, whatever each of them counted.
    dtypes = (parameter.dtype for parameter in parameters)
    total = total.to(reduce(torch.promote_types, dtypes, torch.float32))
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return total


def part_of(entry: Held, is_of_stage: bool = False) -> Part | None:
    """Return what the gradient of a parameter is a part of, unless it is whole here."""
    sizes = entry.groups.mesh.sizes
    shardings = entry.placement.shardings
    is_whole = all(
        isinstance(sharding, Broadcast) or size == 1
        for sharding, size in zip(shardings, sizes, strict=True)
    )
    if is_whole and not is_of_stage:
        return None
    is_first = entry.groups.rank == 0
    return Part(_is_first_copy(entry), is_first, is_of_stage)


def local_gradient(gradient: torch.Tensor) -> torch.Tensor:
    """Return what a rank has of a gradient as a plain tensor, of the same memory."""
    return gradient.plain() if isinstance(gradient, ShardGradient) else gradient


def _is_first_copy(entry: Held) -> bool:
    return all(
        coordinate == 0 or not isinstance(sharding, Broadcast)
        for sharding, coordinate in zip(
            entry.placement.shardings, entry.groups.coordinates, strict=True
        )
    )
