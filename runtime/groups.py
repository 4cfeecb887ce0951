"""Join the ranks of a mesh: one process group per axis, found by symbolic name.

Programs name a group ``stage0/tp``; what it is called in this process is known only
once the ranks have met.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from partita.compiler.capture.torch_private import (
    name_group,
    ranks_of_group,
)
from partita.compiler.errors import BadMesh
from partita.compiler.ir.mesh import Mesh
from partita.runtime.gathers import name_gathers_shortly
from partita.runtime.stores import single_process_store


@dataclass(frozen=True)
class Groups:
    """Where this process stands in a mesh, and the groups it belongs to.

    ``names`` maps a symbolic name to one that this process's group is found by.
    """

    mesh: Mesh
    coordinates: tuple[int, ...]
    device: torch.device
    device_mesh: DeviceMesh
    names: Mapping[str, str]

    @property
    def rank(self) -> int:
        """The number of this process in the mesh."""
        return self.mesh.rank(self.coordinates)


def device_of_rank(device: str | torch.device | None = None) -> torch.device:
    """Return the device this rank works on, with its number when it is a CUDA one.

    Unless told, a GPU where every rank of this machine has one of its own and the
    process group, if there is one, can use it; else the CPU.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if device is None:
        num_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        is_gloo = dist.is_initialized() and dist.get_backend() == "gloo"
        has_gpus = torch.cuda.device_count() >= num_ranks and not is_gloo
        device = "cuda" if has_gpus else "cpu"
    device = torch.device(device)
    if str(device) == "cuda":
        return torch.device("cuda", local_rank)
    return device


def bind(mesh: Mesh, device: str | torch.device | None = None) -> Groups:
    """Return this process's groups; start ``torch.distributed`` if nobody has yet.

    It is started from the environment that torchrun sets, over NCCL for CUDA and
    gloo for the CPU. A mesh of one rank needs no environment.

    Raises:
        BadMesh: when another number of processes runs than the mesh has ranks.
    """
    stages = ((mesh, tuple(range(mesh.size))),)
    return bind_stages(mesh, stages, device)[0]


def bind_stages(
    mesh: Mesh,
    stages: Sequence[tuple[Mesh, tuple[int, ...]]],
    device: str | torch.device | None = None,
) -> dict[int, Groups]:
    """Return the groups of the stages that this process is in, by stage.

    All ranks call it together, as in ``bind``.

    Args:
        mesh: of all ranks.
        stages: by stage its mesh, and its ranks in the mesh's order.
        device: as in ``compile``.
    """
    device = join(mesh, device)
    rank = dist.get_rank()
    made: dict[tuple[Mesh, tuple[int, ...]], DeviceMesh] = {}
    found: dict[int, Groups] = {}
    for number, stage in enumerate(stages):
        own, ranks = stage
        if stage not in made:
            made[stage] = DeviceMesh(
                device.type,
                torch.tensor(ranks).reshape(own.sizes),
                mesh_dim_names=own.names,
            )
        if rank in ranks:
            names = {
                f"stage{number}/{axis}": _stable_name(own, axis, made[stage])
                for axis in own.names
            }
            here = own.coordinates(ranks.index(rank))
            found[number] = Groups(own, here, device, made[stage], names)
    if device.type == "cpu":
        # Gloo connects anew: none may leave while another still does. A barrier might
        # be that of GPUs, where there are some.
        dist.all_reduce(torch.zeros(1))
    return found


def join(mesh: Mesh, device: str | torch.device | None = None) -> torch.device:
    """Start ``torch.distributed`` for a mesh if nobody has; return the rank's device.

    Raises:
        BadMesh: when another number of processes runs than the mesh has ranks.
    """
    _check_size(mesh, _world_size())
    return start(device)


def _stable_name(mesh: Mesh, axis: str, joined: DeviceMesh) -> str:
    """Return a name for the group of an axis that is the same in every run.

    And on every rank, though groups are different: ranks that run one program then have
    one text of it, and share what that is compiled to. A name is used again for a group
    of the same ranks; a rank that has an axis on other ranks counts.
    """
    group = joined.get_group(axis)
    ranks = tuple(dist.get_process_group_ranks(group))
    for number in count():
        name = f"partita/{mesh}/{axis}/{number}"
        taken = ranks_of_group(name)
        if not taken:
            name_group(name, group)
        if taken in ((), ranks):
            return name
    raise AssertionError("numbers do not end")


def start(device: str | torch.device | None = None) -> torch.device:
    """Start ``torch.distributed`` if nobody has yet; return this rank's device.

    The ranks are those of the environment that torchrun sets; without one, this
    process is the only rank.
    """
    device = device_of_rank(device)
    name_gathers_shortly()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        if "WORLD_SIZE" in os.environ:
            dist.init_process_group(backend)
        else:
            store = single_process_store()
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        atexit.register(_end)
    return device


def _end() -> None:
    """End what ``start`` started: left to itself, gloo now and then aborts at exit.

    After an uncaught exception the others may wait in a collective, and ending would
    be waiting with them.
    """
    if dist.is_initialized() and not hasattr(sys, "last_value"):
        dist.destroy_process_group()


def _world_size() -> int:
    if dist.is_initialized():
        return dist.get_world_size()
    return int(os.environ.get("WORLD_SIZE", "1"))


def _check_size(mesh: Mesh, num_ranks: int) -> None:
    if num_ranks != mesh.size:
        raise BadMesh(
            f"mesh {mesh} has {mesh.size} ranks, found {num_ranks}; start it with "
            f"torchrun --nproc-per-node {mesh.size}, or with partita run"
        )
