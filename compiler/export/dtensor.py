"""A plan's placements as Python for PyTorch's own DTensor; the file needs torch alone.

Parameters, buffers and inputs are placed as in the plan, and a parameter that the plan
uses in another placement is redistributed in front of each use, which is how ZeRO-3 is
written with DTensors. What lies between them DTensor's own rules decide, so the numbers
are those of the model, and the collectives need not be those of the plan.
"""

from __future__ import annotations

from collections.abc import Iterator

from partita.compiler.errors import BadOptions
from partita.compiler.export.exporter import Exporter
from partita.compiler.ir.program import InputKind
from partita.compiler.ir.sbp import Partial, Placement, Split
from partita.compiler.plan.document import Document

_HEAD = '''\
"""Where a model's tensors live on a mesh of ranks, for PyTorch's DTensor.

Start the ranks with torchrun; every rank makes the model and the whole batch:

    mesh = make_mesh("cuda")                       # or "cpu"
    model = parallelize(model, mesh)
    with implicit_replication():                   # for tensors that forward makes
        args, kwargs = place_inputs(model, mesh, *args, **kwargs)
        output = model(*args, **kwargs)
        loss = output.full_tensor()                # of a loss that is the output
        loss.backward()                            # gradients are DTensors too

A placement is a list with an entry for each axis of the mesh. A line that ends in a
comment is cut otherwise in the plan, in a way that DTensor has not.
"""

import inspect

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn.utils.parametrize import register_parametrization

__all__ = ["implicit_replication", "make_mesh", "parallelize", "place_inputs"]
'''

_TAIL = '''\


def make_mesh(device_type):
    """Return the mesh of all ranks; it starts torch.distributed if nobody has."""
    return init_device_mesh(device_type, SIZES, mesh_dim_names=AXES)


class Redistribute(nn.Module):
    """Brings a parameter from where it is held to where it is used."""

    def __init__(self, placements):
        super().__init__()
        self.placements = placements

    def forward(self, parameter):
        return parameter.redistribute(placements=self.placements)


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Return the model with its parameters and buffers as DTensors."""
    whole = [Replicate()] * mesh.ndim
    made = {}  # so that tied parameters stay one

    def place(path, module, mesh):
        for name, tensor in list(module.named_parameters(recurse=False)):
            if id(tensor) not in made:
                held = HELD.get(f"{path}.{name}".lstrip("."), whole)
                shards = distribute_tensor(tensor.detach(), mesh, held)
                made[id(tensor)] = tensor, nn.Parameter(shards, tensor.requires_grad)
            module.register_parameter(name, made[id(tensor)][1])
        for name, tensor in list(module.named_buffers(recurse=False)):
            held = BUFFERS.get(f"{path}.{name}".lstrip("."), whole)
            setattr(module, name, distribute_tensor(tensor, mesh, held))

    model = distribute_module(model, mesh, place)
    for path, module in list(model.named_modules()):
        for name, _ in list(module.named_parameters(recurse=False)):
            used = USED.get(f"{path}.{name}".lstrip("."))
            if used is not None:
                register_parametrization(module, name, Redistribute(used), unsafe=True)
    return model


def place_inputs(model, mesh, *args, **kwargs):
    """Return the arguments of a call, positional ones and keywords, as DTensors."""
    known = inspect.signature(model.forward).parameters.values()
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [parameter.name for parameter in known if parameter.kind in kinds]
    names += [f"args.{i}" for i in range(len(names), len(args))]
    placed = [_placed(name, x, mesh) for name, x in zip(names, args, strict=False)]
    return placed, {name: _placed(name, x, mesh) for name, x in kwargs.items()}


def _placed(name, value, mesh):
    if isinstance(value, dict):
        return {key: _placed(f"{name}.{key}", x, mesh) for key, x in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_placed(f"{name}.{i}", x, mesh) for i, x in enumerate(value)]
        return type(value)(parts)
    if name not in INPUTS:
        return value
    return distribute_tensor(value, mesh, INPUTS[name], src_data_rank=None)
'''


def write_dtensor(document: Document) -> str:
    """Return the Python source.

    Raises:
        BadOptions: for a pipeline, whose stages are on other ranks.
    """
    if len(document.stages) > 1:
        raise BadOptions(
            "--to dtensor: the plan has stages, and DTensor places a whole model on "
            "one mesh; want a plan of a mesh without an axis pp"
        )
    held: dict[str, Placement] = {}
    used: dict[str, Placement] = {}
    for name, parameter in document.parameters.items():
        placements = parameter.placements
        stays = placements.optimizer or placements.storage
        held |= dict.fromkeys((name, *parameter.aliases), stays)
        if printed(placements.use) != printed(stays):
            used |= dict.fromkeys((name, *parameter.aliases), placements.use)
    buffers = {
        known: buffer.placement
        for name, buffer in document.buffers.items()
        for known in (name, *buffer.aliases)
    }
    entering = {
        node.role.name: placement
        for node in document.nodes.values()
        if node.role is not None and node.role.kind is InputKind.INPUT
        for placement in node.signature.results
        if placement is not None
    }
    mesh = document.mesh
    lines = [
        _HEAD,
        f"MODEL = {document.model.class_name!a}",
        f"AXES = {mesh.names!r}",
        f"SIZES = {mesh.sizes!r}",
        *_table("HELD", "Parameters, as they are held and updated.", held),
        *_table("USED", "Those that are used in another placement.", used),
        *_table("BUFFERS", "Buffers.", buffers),
        *_table("INPUTS", "Tensors of a call, by argument and place in it.", entering),
    ]
    return "\n".join(lines) + "\n" + _TAIL


def printed(placement: Placement) -> str:
    """Return a placement as Python that makes DTensor's.

    DTensor redistributes nothing to a partial value: it stays whole there.

    >>> printed(Placement.parse("(S(0), B, P(sum))"))
    '[Shard(0), Replicate(), Replicate()]'
    """
    entries = (
        f"Shard({sharding.dim})" if isinstance(sharding, Split) else "Replicate()"
        for sharding in placement.shardings
    )
    return f"[{', '.join(entries)}]"


def _table(name: str, what: str, placements: dict[str, Placement]) -> Iterator[str]:
    yield f"\n# {what}"
    yield f"{name} = {{"
    for key, placement in placements.items():
        unlike = (
            isinstance(s, Partial) or (isinstance(s, Split) and s.segments)
            for s in placement.shardings
        )
        note = f"  # {placement}" if any(unlike) else ""
        yield f"    {key!a}: {printed(placement)},{note}"
    yield "}"


EXPORTER = Exporter(
    "dtensor", "placements as Python, for PyTorch's DTensor", ".py", write_dtensor
)
