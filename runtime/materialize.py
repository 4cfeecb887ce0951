"""Give the parameters and buffers of a model their first values, shard by shard.

A rank holds one full tensor at a time (for a seed: those of one module), takes its
shard and lets the rest go, so a model on the meta device may be larger than a rank.

* ``None``: the model's own values
* a state dict: its values, by the model's names
* a callable ``(name, shape, dtype) -> tensor``, asked for each parameter in order
* a seed: each module's own initialisation, in the order of ``model.modules()``; what
  no module initialises keeps the values it has

A buffer that has values keeps them, unless a state dict brings others. One that has
none and is in no state dict takes what its module's own initialisation gives it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from partita.compiler.capture.torch_private import own_tensors, with_tensors
from partita.compiler.errors import BadOptions
from partita.compiler.ir.sbp import Placement
from partita.runtime.groups import Groups
from partita.runtime.inventory import Kept
from partita.runtime.shards import take_shard

InitFunction = Callable[[str, tuple[int, ...], torch.dtype], torch.Tensor]
Init = int | Mapping[str, torch.Tensor] | InitFunction | None
"""Where first values come from; see the module's text."""


def materialize(
    model: nn.Module,
    kept: Sequence[Kept],
    placements: Mapping[str, Placement],
    groups: Groups,
    init: Init = None,
) -> dict[str, torch.Tensor]:
    """Return this rank's shard of every parameter and buffer, by first name.

    A shard shares no memory with the model or with what ``init`` gives.

    Raises:
        BadOptions: naming a parameter or buffer that gets no or ill-typed values.
    """
    shards: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        for entry, full in _full_values(model, kept, init):
            if full.shape != entry.tensor.shape:
                raise BadOptions(
                    f"init: {entry.name!r} has shape {list(full.shape)}; want "
                    f"{list(entry.tensor.shape)}, that of the model"
                )
            shard = take_shard(
                full.to(entry.tensor.dtype),
                placements[entry.name],
                groups.mesh,
                groups.coordinates,
            )
            if shard.untyped_storage().data_ptr() == full.untyped_storage().data_ptr():
                shard = shard.clone()
            del full  # before the next one is made
            shards[entry.name] = shard.to(groups.device)
    return shards


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
            yield entry, init(entry.name, entry.type.shape, entry.type.dtype)
        elif init is None and entry.is_parameter:
            raise BadOptions(
                f"init: parameter {entry.name!r} is on the meta device and has no "
                "values; give a seed, a state dict or a callable"
            )
        else:
            own.append(entry)
    yield from _own_values(model, own, seed=init if isinstance(init, int) else 0)


def _check_names(kept: Sequence[Kept], state: Mapping[str, torch.Tensor]) -> None:
    known = {name for entry in kept for name in entry.saved}
    unknown = sorted(set(state) - known)
    if unknown:
        raise BadOptions(f"init: the model has no {unknown[0]!r}")
    for entry in kept:
        if entry.saved and not any(name in state for name in entry.saved):
            raise BadOptions(f"init: the state dict has no {entry.name!r}")


def _name_in(entry: Kept, state: Mapping[str, torch.Tensor]) -> str:
    return next(name for name in entry.saved if name in state)


def _whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _own_values(
    model: nn.Module, wanted: Sequence[Kept], seed: int
) -> Iterator[tuple[Kept, torch.Tensor]]:
    """Yield what each module's own initialisation makes, one module at a time."""
    waiting = {id(entry.tensor): entry for entry in wanted}
    # Drawn on the CPU, so that it is the same whatever a rank runs on.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        for path, module in model.named_modules():
            names = {
                name: waiting.pop(id(tensor))
                for name, tensor in own_tensors(module).items()
                if id(tensor) in waiting
            }
            if names:
                values = _initialised(model, path, module, names)
                yield from ((entry, values.pop(name)) for name, entry in names.items())


def _initialised(
    model: nn.Module, path: str, module: nn.Module, names: Mapping[str, Kept]
) -> dict[str, torch.Tensor]:
    """Return the tensors that ``module`` itself holds as it initialises them.

    A transformers model knows how to (``_init_weights``), else the module does.
    """
    # A copy, so that nothing happens to the user's model.
    ours = with_tensors(module, _unset)
    for initialise in (
        *(partial(m, ours) for m in _enclosing(model, path, "_init_weights")),
        *(m for name in _RESET for m in _methods(ours, name)),
    ):
        initialise()
        if not any(_is_unset(own_tensors(ours)[name]) for name in names):
            break
    values = own_tensors(ours)
    for name, entry in names.items():
        if _is_unset(values[name]):
            if entry.tensor.is_meta:
                raise BadOptions(
                    f"init: {entry.name!r} is on the meta device and has no values; "
                    f"{type(module).__name__}.reset_parameters gives it none either; "
                    "give a state dict or a callable"
                )
            values[name] = entry.tensor.detach()
    return values


_RESET = ("reset_parameters", "_reset_parameters")


def _enclosing(model: nn.Module, path: str, name: str) -> list[Callable[..., object]]:
    """Return the method of the innermost module around ``path`` that has it."""
    found: list[Callable[..., object]] = []
    steps = path.split(".") if path else []
    for num in range(len(steps) + 1):
        found = _methods(model.get_submodule(".".join(steps[:num])), name) or found
    return found


def _methods(module: nn.Module, name: str) -> list[Callable[..., object]]:
    method = getattr(module, name, None)
    return [method] if callable(method) else []


def _unset(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor like ``tensor`` on the CPU that shows where nobody wrote."""
    values = torch.empty_like(tensor, device="cpu", requires_grad=False)
    values.fill_(_mark(tensor.dtype))
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(values, requires_grad=tensor.requires_grad)
    return values


def _is_unset(tensor: torch.Tensor) -> bool:
    mark = _mark(tensor.dtype)
    marked = tensor.isnan() if mark != mark else tensor == mark
    return bool(marked.any())


def _mark(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return 0 if dtype == torch.bool else torch.iinfo(dtype).min
