"""The state of any elementwise optimizer, by the original model's names.

The form is that of ``torch.distributed.checkpoint.state_dict``: ``state`` by full
name, ``param_groups`` with full names under ``params``.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from partita.compiler.errors import BadOptions
from partita.runtime.agree import everyone_checks, everyone_tells
from partita.runtime.dtensors import to_dtensor
from partita.runtime.state import Held, check_value, write

OF_RANK = "partita_rank"
"""Of a group of an optimizer: the rank whose shards it updates."""

_OWN = (OF_RANK, "params", "param_names")
"""What groups have of this rank alone; there are the full names under ``params``."""


def optimizer_state_dict(
    optimizer: torch.optim.Optimizer, held: Sequence[Held]
) -> dict[str, Any]:
    """Return the optimizer's state, its per-element tensors as DTensors.

    Raises:
        BadOptions: for a parameter that is not the program's, or state that is
            neither per element nor a number.
    """
    owners = _owners(optimizer, held)
    state: dict[str, dict[str, Any]] = {}
    for parameter, values in optimizer.state.items():
        owner = owners.get(id(parameter))
        if owner is None:  # what stands for none, on a rank that has no parameters
            continue
        state[owner.name] = {
            key: to_dtensor(value, owner.shape, owner.placement, owner.groups)
            if _is_per_element(key, value, owner)
            else value
            for key, value in values.items()
        }
    param_groups = [
        {key: value for key, value in group.items() if key not in _OWN}
        | {"params": list(_named(group, owners))}
        for group in optimizer.param_groups
    ]
    return {"state": state, "param_groups": param_groups}


def with_names_of_all(groups: list[dict[str, Any]], names: Sequence[str]) -> Any:
    """Return ``param_groups`` with the parameters of every rank of a pipeline.

    Ranks of other stages have other parameters, and a checkpoint keeps one rank's
    groups. All ranks call it together; ``names`` are the model's, in its order.

    Raises:
        BadOptions: where ranks have other numbers of groups.
    """
    told = everyone_tells([set(group["params"]) for group in groups])
    numbers = sorted({len(rows) for rows in told})
    if len(numbers) > 1:
        raise BadOptions(
            f"optimizer: ranks have {numbers[0]} and {numbers[-1]} groups of "
            "parameters; give every rank the same groups, also one that is empty there"
        )
    found = [set[str]().union(*rows) for rows in zip(*told, strict=True)]
    return [
        {**group, "params": [name for name in names if name in of_all]}
        for group, of_all in zip(groups, found, strict=True)
    ]


def load_optimizer_state_dict(
    optimizer: torch.optim.Optimizer,
    held: Sequence[Held],
    state_dict: Mapping[str, Any],
    elsewhere: Collection[str] = (),
    wanted: Collection[torch.Tensor] = (),
) -> None:
    """Give the optimizer what ``optimizer_state_dict`` returned, here or elsewhere.

    Per-element values may be DTensors or whole tensors. Of a state that is zero on all
    ranks, which is that of no step, the optimizer is left without any. All ranks call
    it.

    Args:
        optimizer: over parameters of ``held``.
        held: what this rank has.
        state_dict: shares no memory with the optimizer afterwards.
        elsewhere: the names of what other stages hold, which is passed over.
        wanted: the parameters that have state, if there is any.

    Raises:
        BadOptions: on every rank, before anything is changed, for state of a parameter
            that the optimizer does not have, or other groups of parameters than it
            has, or where one is missing.
    """

    def check() -> None:
        _check(optimizer, held, state_dict, elsewhere, wanted)

    everyone_checks(check)
    owners = _owners(optimizer, held)
    named = [_named(group, owners) for group in optimizer.param_groups]
    loaded: dict[torch.Tensor, dict[str, Any]] = {}
    for name, parameter in [pair for group in named for pair in group.items()]:
        if name not in state_dict["state"]:
            continue
        owner = owners[id(parameter)]
        new: dict[str, Any] = {}
        for key, value in state_dict["state"][name].items():
            if isinstance(value, torch.Tensor) and value.ndim > 0:
                shard = torch.empty_like(owner.shard, dtype=value.dtype)
                write(shard, value, owner.placement, owner.groups)
                new[key] = shard.requires_grad_(False)
            else:
                new[key] = copy.deepcopy(value)
        loaded[parameter] = new
    if not any(everyone_tells(_has_stepped(loaded))):
        # The first step makes it: what SGD with dampening begins with is no zero.
        for parameter in loaded:
            optimizer.state.pop(parameter, None)
        loaded.clear()
    optimizer.state.update(loaded)
    for group, saved in zip(
        optimizer.param_groups, state_dict["param_groups"], strict=True
    ):
        group.update({k: copy.deepcopy(x) for k, x in saved.items() if k not in _OWN})


def _check(
    optimizer: torch.optim.Optimizer,
    held: Sequence[Held],
    state_dict: Mapping[str, Any],
    elsewhere: Collection[str],
    wanted: Collection[torch.Tensor],
) -> None:
    """Check that a state is of this optimizer; see ``load_optimizer_state_dict``."""
    for key in ("state", "param_groups"):
        if key not in state_dict:
            raise BadOptions(
                f"optimizer state: {key!r} is missing; want what "
                "optimizer_state_dict returned"
            )
    owners = _owners(optimizer, held)
    named = [_named(group, owners) for group in optimizer.param_groups]
    found = [
        set(group["params"]) - {*elsewhere} for group in state_dict["param_groups"]
    ]
    if [set(group) for group in named] != found:
        raise BadOptions("optimizer state: its groups hold other parameters")
    parameters = {name: p for group in named for name, p in group.items()}
    state: Mapping[str, Mapping[str, Any]] = state_dict["state"]
    for name, values in state.items():
        if name in elsewhere:
            continue
        if name not in parameters:
            raise BadOptions(f"optimizer state: no parameter {name!r} is optimized")
        for key, value in values.items():
            if isinstance(value, torch.Tensor) and value.ndim > 0:
                what = f"optimizer state {key!r} of {name!r}"
                check_value(what, value, owners[id(parameters[name])])
    for parameter in wanted if state else ():
        name = owners[id(parameter)].name
        if name not in state:
            raise BadOptions(
                f"optimizer state: that of {name!r} is missing; want that of all "
                "parameters, as torch.distributed.checkpoint saves it: a rank of a "
                "pipeline has that of its own stages"
            )


def _has_stepped(state: Mapping[torch.Tensor, Mapping[str, Any]]) -> bool:
    """Whether anything in a state is other than zero."""
    return any(
        bool(value.any()) if isinstance(value, torch.Tensor) else value
        for values in state.values()
        for value in values.values()
    )


def _owners(optimizer: torch.optim.Optimizer, held: Sequence[Held]) -> dict[int, Held]:
    owners = {id(entry.shard): entry for entry in held}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in owners and parameter.numel():
                raise BadOptions(
                    f"optimizer: group {number} has a parameter of shape "
                    f"{list(parameter.shape)} that is not the program's; give it "
                    "program.parameters()"
                )
    return owners


def _named(
    group: dict[str, Any], owners: Mapping[int, Held]
) -> dict[str, torch.Tensor]:
    """Return the parameters of a group by name; what stands for none has no name."""
    return {owners[id(p)].name: p for p in group["params"] if id(p) in owners}


def _is_per_element(key: str, value: object, owner: Held) -> bool:
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return False  # a count of steps, say
    if value.shape != owner.shard.shape:
        raise BadOptions(
            f"optimizer state {key!r} of {owner.name!r} has shape {list(value.shape)}, "
            f"the rank's shard {list(owner.shard.shape)}: only elementwise optimizers "
            "work on shards"
        )
    return True
