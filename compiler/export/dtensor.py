"""A plan's placements as Python for PyTorch's own DTensor; the file needs torch alone.

Parameters, buffers and inputs are placed as in the plan, and a parameter that the plan
uses in another placement is redistributed in front of each use, which is how ZeRO-3 is
written with DTensors. What lies between them DTensor's own rules decide, so the numbers
are those of the model, and the collectives need not be those of the plan.

Of a pipeline every stage has tables of its own and a mesh of its own ranks. DTensor has
no step that goes from mesh to mesh, so the file of a pipeline says so where it would
run.
"""

from __future__ import annotations

from collections.abc import Iterator

from partita.compiler.export.exporter import Exporter
from partita.compiler.ir.program import InputKind
from partita.compiler.ir.sbp import Partial, Placement, Split
from partita.compiler.plan.document import Document
from partita.compiler.plan.stages import stage_documents

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

_STAGED_HEAD = '''\
"""Where the tensors of every stage of a pipeline live, for PyTorch's DTensor.

A placement is a list with an entry for each axis of the stage's mesh. A line that ends
in a comment is cut otherwise in the plan, in a way that DTensor has not. Every rank
makes all meshes, and places what is of its own stages:

    meshes = make_meshes("cuda")                   # or "cpu"
    distribute_tensor(tensor, meshes[0], STAGES[0]["held"]["layer.weight"])
"""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

__all__ = ["STAGES", "distribute_tensor", "make_meshes", "parallelize"]
'''

_STAGED_TAIL = '''\


def make_meshes(device_type):
    """Return the mesh of every stage."""
    return [
        DeviceMesh(
            device_type,
            torch.tensor(stage["ranks"]).reshape(stage["sizes"]),
            mesh_dim_names=stage["axes"],
        )
        for stage in STAGES
    ]


def parallelize(model, mesh):
    """Refuse: no model runs on the meshes of several stages by DTensors alone."""
    raise RuntimeError(
        "the plan has stages, and DTensor runs a model on one mesh; what runs is what "
        "partita export --to python or --to pt2 writes"
    )
'''


def write_dtensor(document: Document) -> str:
    """Return the Python source; of a pipeline it places tensors and runs nothing."""
    if len(document.stages) > 1:
        return _write_stages(document)
    mesh = document.mesh
    lines = [
        _HEAD,
        f"MODEL = {document.model.class_name!a}",
        f"AXES = {mesh.names!r}",
        f"SIZES = {mesh.sizes!r}",
    ]
    for name, (what, placements) in _tables(document).items():
        if name != "shared":
            lines += ["", f"# {what}", *_table(f"{name.upper()} = ", placements)]
    return "\n".join(lines) + "\n" + _TAIL


def _write_stages(document: Document) -> str:
    lines = [_STAGED_HEAD, f"MODEL = {document.model.class_name!a}", "STAGES = ["]
    parts = stage_documents(document)
    for stage, part in zip(document.stages, parts, strict=True):
        lines += ["    {"]
        lines += [f'        "ranks": {stage.ranks!r},']
        lines += [f'        "axes": {stage.mesh.names!r},']
        lines += [f'        "sizes": {stage.mesh.sizes!r},']
        for name, (what, placements) in _tables(part).items():
            table = (f"# {what}", *_table(f'"{name}": ', placements, ","))
            lines += [f"        {line}" for line in table]
        lines += ["    },"]
    return "\n".join([*lines, "]"]) + "\n" + _STAGED_TAIL


def _tables(document: Document) -> dict[str, tuple[str, dict[str, Placement]]]:
    """Return what is placed of a plan, or of a stage: by table what it says and all."""
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
    return {
        "held": ("Parameters, as they are held and updated.", held),
        "used": ("Those that are used in another placement.", used),
        "shared": (
            "Parameters and buffers of other stages, as they are used here.",
            _entering(document, InputKind.SHARED),
        ),
        "buffers": ("Buffers.", buffers),
        "inputs": (
            "Tensors of a call, by argument and place in it.",
            _entering(document, InputKind.INPUT),
        ),
    }


def _entering(document: Document, kind: InputKind) -> dict[str, Placement]:
    return {
        node.role.name: placement
        for node in document.nodes.values()
        if node.role is not None and node.role.kind is kind
        for placement in node.signature.results
        if placement is not None
    }


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


def _table(name: str, placements: dict[str, Placement], end: str = "") -> Iterator[str]:
    yield f"{name}{{"
    for key, placement in placements.items():
        unlike = (
            isinstance(s, Partial) or (isinstance(s, Split) and s.segments)
            for s in placement.shardings
        )
        note = f"  # {placement}" if any(unlike) else ""
        yield f"    {key!a}: {printed(placement)},{note}"
    yield f"}}{end}"


EXPORTER = Exporter(
    "dtensor", "placements as Python, for PyTorch's DTensor", ".py", write_dtensor
)
