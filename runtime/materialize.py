"""Give the parameters and buffers of a model their first values, shard by shard.

A rank holds one full tensor at a time (for a seed: those of one module), takes its
shard and lets the rest go, so a model on the meta device may be larger than a rank.

* ``None``: the model's own values
* a state dict: its values, by the model's names
* a callable ``(name, shape, dtype) -> tensor``, asked for each parameter in order
* a seed: the model's own initialisation, module by module (``initialise.py``)

A buffer that has values keeps them, unless a state dict brings others. One that has
none and is in no state dict takes what its module's own initialisation gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from partita.compiler.errors import BadOptions
from partita.compiler.ir.sbp import Placement
from partita.runtime.agree import everyone_checks
from partita.runtime.dtensors import check_rank, check_tensor
from partita.runtime.first_values import sum_of_bits
from partita.runtime.groups import Groups
from partita.runtime.initialise import initial_values
from partita.runtime.inventory import Kept, is_extra_state
from partita.runtime.shards import take_shard

InitFunction = Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor]
Init = int | Mapping[str, torch.Tensor] | InitFunction | None
"""Where first values come from; see the module's text."""


class FirstValues(NamedTuple):
    """What a rank begins with, by first name.

    Attributes:
        shards: its shards.
        sums: of the bits of all that the model saves or a step reads, where there are
            other ranks, which begin with the same.
    """

    shards: dict[str, torch.Tensor]
    sums: dict[str, torch.Tensor]


def check_init(init: Init) -> None:
    """Check the values of a state dict; each rank calls it, whatever its ``init`` is.

    Ranks make DTensors whole together: one that refused its own would leave the others
    waiting.

    Raises:
        BadOptions: on every rank, for what is no tensor on one, or has the shard of
            another rank.
    """

    def check() -> None:
        for name, value in init.items() if isinstance(init, Mapping) else ():
            if is_extra_state(name):
                continue
            check_tensor(f"init: {name!r}", value)
            if isinstance(value, DTensor):
                check_rank(f"init: {name!r}", value)

    everyone_checks(check)


def materialize(
    model: nn.Module,
    kept: Sequence[Kept],
    placements: Mapping[str, Placement],
    groups: Groups,
    init: Init = None,
    read: AbstractSet[str] = frozenset(),
) -> FirstValues:
    """Return this rank's shard of all that ``placements`` has.

    Values of other parameters and buffers are made too and let go of, since random
    numbers follow each other. A shard shares no memory with the model or with what
    ``init`` gives. ``read`` are names of what a step reads.

    Raises:
        BadOptions: naming a parameter or buffer that gets no or ill-typed values.
    """
    made = FirstValues({}, {})
    num_ranks = dist.get_world_size() if dist.is_initialized() else 1
    with torch.no_grad():
        for entry, full in _full_values(model, kept, init):
            is_compared = entry.saved or not read.isdisjoint(entry.names)
            if is_compared and num_ranks > 1:
                made.sums[entry.name] = sum_of_bits(full)
            if entry.name not in placements:
                continue
            if full.shape != entry.tensor.shape:
                raise BadOptions(
                    f"init: {entry.name!r} has shape {list(full.shape)}; want "
                    f"{list(entry.tensor.shape)}, that of the model"
                )
            full = full.to(entry.tensor.dtype)
            here = groups.mesh, groups.coordinates
            shard = take_shard(full, placements[entry.name], *here)
            if shard.untyped_storage().data_ptr() == full.untyped_storage().data_ptr():
                shard = shard.clone()
            del full  # before the next one is made
            made.shards[entry.name] = shard.to(groups.device)
    return made


def _full_values(
    model: nn.Module, kept: Sequence[Kept], init: Init
) -> Iterator[tuple[Kept, torch.Tensor]]:
    """Yield every entry with its full value, one after the other."""
    if isinstance(init, Mapping):
        _check_names(kept, init)
    own: list[Kept] = []
    for entry in kept:
        has_values = not entry.tensor.is_meta
        if isinstance(init, Mapping) and entry.saved:
            yield entry, _whole(init[_name_in(entry, init)])
        elif has_values and (init is None or not entry.is_parameter):
            yield entry, entry.tensor.detach()
        elif callable(init) and (entry.is_parameter or entry.saved):
            yield entry, _asked(init, entry)
        elif init is None and entry.is_parameter:
            raise BadOptions(
                f"init: parameter {entry.name!r} is on the meta device and has no "
                "values; give a seed, a state dict or a callable"
            )
        else:
            own.append(entry)
    names = {id(entry.tensor): entry.name for entry in own}
    entries = {id(entry.tensor): entry for entry in own}
    seed = init if isinstance(init, int) else 0
    for key, value in initial_values(model, names, seed):
        yield entries[key], value


def _asked(init: InitFunction, entry: Kept) -> torch.Tensor:
    value = init(entry.name, entry.type.shape, entry.type.dtype)
    check_tensor(f"init: what it returned for {entry.name!r}", value)
    return value


def _check_names(kept: Sequence[Kept], state: Mapping[str, torch.Tensor]) -> None:
    known = {name for entry in kept for name in entry.saved}
    unknown = sorted(n for n in state if n not in known and not is_extra_state(n))
    if unknown:
        raise BadOptions(f"init: the model has no {unknown[0]!r}")
    for entry in kept:
        if entry.saved and not any(name in state for name in entry.saved):
            raise BadOptions(f"init: the state dict has no {entry.name!r}")


def _name_in(entry: Kept, state: Mapping[str, torch.Tensor]) -> str:
    return next(name for name in entry.saved if name in state)


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value
