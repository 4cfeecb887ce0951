"""The Python around the tables that ``dtensor`` writes; it needs torch alone.

It is text here: what it imports of torch is for the file that is written, which has to
run where Partita is not, so it cannot go through torch_private.py. It keeps to public
names; only the class of dispatch modes has none, and is called as torch's own documents
call it (``torch.library.register_torch_dispatch``).
"""

from __future__ import annotations

HEAD = '''\
"""Where a model's tensors live on a mesh of ranks, for PyTorch's DTensor.

Start the ranks with torchrun; every rank makes the model and the whole batch:

    mesh = make_mesh("cuda")                       # or "cpu"
    model = parallelize(model, mesh)
    with every_op():
        args, kwargs = place_inputs(model, mesh, *args, **kwargs)
        output = model(*args, **kwargs)
        loss = output.full_tensor()                # of a loss that is the output
        loss.backward()                            # gradients are DTensors too

A placement is a list with an entry for each axis of the mesh. A line that ends in a
comment is cut otherwise in the plan, in a way that DTensor has not. Where PRECISION is
a dtype, the forward of what parallelize returns runs under torch.autocast with it; a
loss that you compute of its outputs belongs there too.
"""

import inspect
from contextlib import contextmanager
from functools import cache

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.experimental import implicit_replication
from torch.fx.node import map_aggregate
from torch.fx.operator_schemas import get_signature_for_torch_op
from torch.nn.utils.parametrize import register_parametrization
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["every_op", "make_mesh", "parallelize", "place_inputs"]
'''

TAIL = '''\


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
                held = (HELD | BUFFERS).get(f"{path}.{name}".lstrip("."), whole)
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
    if PRECISION is not None:
        model.forward = torch.autocast(mesh.device_type, PRECISION)(model.forward)
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


@contextmanager
def every_op():
    """Within it every op runs, forward and backward: of plain tensors as of DTensors.

    Tensors that the model makes are the same on every rank, so they count as
    replicated.
    """
    with implicit_replication(), _EveryOp():
        yield


aten = torch.ops.aten
# Some rules of DTensor hold on some meshes alone, so these ops go other ways.
# What is computed on every rank by the batch that it has: by op which operands have the
# batch, which results, and which argument counts it.
BY_BATCH = {
    aten.convolution.default: ([0], [0], None),
    aten.convolution_backward.default: ([0, 1], [0], None),
    aten.native_group_norm.default: ([0], [0, 1, 2], 3),
    aten.native_group_norm_backward.default: ([0, 1, 2, 3], [0], 5),
}
# Losses: a mean of means is not the mean where ranks have uneven or weighted parts.
AVERAGED = {
    aten.binary_cross_entropy.default,
    aten.binary_cross_entropy_backward.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.huber_loss.default,
    aten.huber_loss_backward.default,
    aten.mse_loss.default,
    aten.mse_loss_backward.default,
    aten.nll_loss2d_backward.default,
    aten.nll_loss2d_forward.default,
    aten.nll_loss_backward.default,
    aten.nll_loss_forward.default,
    aten.smooth_l1_loss.default,
    aten.smooth_l1_loss_backward.default,
    aten.soft_margin_loss.default,
    aten.soft_margin_loss_backward.default,
}
MEAN, SUM = 1, 2  # as these ops number their reductions
# By op, the operands that it writes and its schema does not mark.
BY_WHOLE_TENSORS = {
    aten._scaled_dot_product_flash_attention_for_cpu.default: (),
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (),
    aten.cudnn_batch_norm.default: (3, 4),
    aten.miopen_batch_norm.default: (3, 4),
    aten.native_batch_norm.default: (3, 4),
}


class _EveryOp(TorchDispatchMode):
    """Computes from whole tensors what DTensor has no rule for."""

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = _leaves((args, kwargs))
        mesh = next((x.device_mesh for x in given if isinstance(x, DTensor)), None)
        if mesh is None:
            return op(*args, **kwargs)
        if op in BY_BATCH:
            return _by_batch(op, mesh, args)
        if op in AVERAGED:
            return _averaged(op, args, kwargs)
        if op in BY_WHOLE_TENSORS:
            return _by_whole_tensors(op, mesh, args, kwargs)
        try:
            result = op(*args, **kwargs)
        except NotImplementedError:
            result = _by_whole_tensors(op, mesh, args, kwargs)
        _keep_views(op, args, kwargs, result)
        return result


def _leaves(value):
    """Return what is in tuples, lists and dicts, in order."""
    found = []
    map_aggregate(value, found.append)
    return found


@cache
def _arguments(op):
    """Return the arguments of an op as its schema states them."""
    _, (schema,) = get_signature_for_torch_op(op, return_schemas=True)
    return schema.arguments


def _keep_views(op, args, kwargs, result):
    """Write what was written into a view, where it is, to what it is a view of.

    A slice of a dim that is cut is gathered, so it is a copy of what it should be.
    """
    values = *args, *kwargs.values()
    for argument, value in zip(_arguments(op), values):
        if argument.alias_info is None or not isinstance(value, DTensor):
            continue
        if argument.alias_info.is_write:
            _write_through(value)
            continue
        for i, made in enumerate(_leaves(result)):
            if made is not value:
                made.view_of = value, op, args, kwargs, i


@torch.no_grad()
def _write_through(written):
    while hasattr(written, "view_of"):
        base, op, (_, *args), kwargs, i = written.view_of
        if not _share_memory(base, written):
            whole = [Replicate()] * base.device_mesh.ndim
            changed = base.redistribute(placements=whole)
            view = _leaves(op(changed, *args, **kwargs))[i]
            view.copy_(written.redistribute(placements=whole))
            base.copy_(changed)
        written = base


def _share_memory(*tensors):
    pointers = {x.to_local().untyped_storage().data_ptr() for x in tensors}
    return len(pointers) == 1


def _by_batch(op, mesh, args):
    """Run an op on the part of the batch that a rank has of its first operand."""
    operands, results, count = BY_BATCH[op]
    held = args[0].placements if isinstance(args[0], DTensor) else ()
    cut = [isinstance(p, Shard) and p.dim == 0 for p in held] or [False] * mesh.ndim
    batch = [Shard(0) if here else Replicate() for here in cut]
    summed = [Partial() if here else Replicate() for here in cut]
    local = [
        _as(x, mesh, batch if i in operands else [Replicate()] * mesh.ndim)
        for i, x in enumerate(args)
    ]
    if count is not None:
        local[count] = local[0].shape[0]
    returned = op(*local)
    found = _leaves(returned)
    for i, x in enumerate(found):
        if isinstance(x, torch.Tensor):
            size = args[0].shape[:1] if i in results else x.shape[:1]
            whole = torch.empty((*size, *x.shape[1:]), device="meta")
            found[i] = DTensor.from_local(
                x,
                mesh,
                batch if i in results else summed,
                run_check=False,
                shape=whole.shape,
                stride=whole.stride(),
            )
    made = iter(found)
    return map_aggregate(returned, lambda _: next(made))


def _averaged(op, args, kwargs):
    """Run a loss, or its backward, as a sum over all ranks that is divided once."""
    given = {argument.name: argument.default_value for argument in _arguments(op)}
    given |= dict(zip(given, args)) | kwargs
    if given["reduction"] != MEAN:
        return op(*given.values())
    given["reduction"] = SUM
    if "grad_output" in given:
        count = given.get("total_weight", given["self"].numel())
        given["grad_output"] = given["grad_output"] / count
        return op(*given.values())
    found = op(*given.values())
    if isinstance(found, torch.Tensor):
        return found / given["self"].numel()
    total, weight = found
    return total / weight, weight


def _by_whole_tensors(op, mesh, args, kwargs):
    """Run an op on every rank, and write back to the operands that it changes."""
    whole = [Replicate()] * mesh.ndim
    given = map_aggregate(args, lambda x: _as(x, mesh, whole))
    named = map_aggregate(kwargs, lambda x: _as(x, mesh, whole))
    here = op(*given, **named)
    results = map_aggregate(here, lambda x: _placed_whole(x, mesh))
    for argument, before, after in zip(_arguments(op), args, given):
        if argument.alias_info is not None and argument.alias_info.is_write:
            before.copy_(_placed_whole(after, mesh))
            results = before
    for i in BY_WHOLE_TENSORS.get(op, ()):
        if isinstance(args[i], torch.Tensor):
            args[i].copy_(_placed_whole(given[i], mesh))
    return results


def _as(value, mesh, placements):
    """Return the part of a tensor that a rank has where it is placed so."""
    if not isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, DTensor):
        value = _placed_whole(value, mesh)
    return value.redistribute(placements=placements).to_local()


def _placed_whole(value, mesh):
    if not isinstance(value, torch.Tensor):
        return value
    return DTensor.from_local(value, mesh, [Replicate()] * mesh.ndim, run_check=False)
'''

STAGED_HEAD = '''\
"""Where the tensors of every stage of a pipeline live, for PyTorch's DTensor.

A placement is a list with an entry for each axis of the stage's mesh. A line that ends
in a comment is cut otherwise in the plan, in a way that DTensor has not. Where
PRECISION is a dtype, the plan's forward is that under torch.autocast with it. Every
rank makes all meshes, and places what is of its own stages:

    meshes = make_meshes("cuda")                   # or "cpu"
    distribute_tensor(tensor, meshes[0], STAGES[0]["held"]["layer.weight"])
"""

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

__all__ = ["STAGES", "distribute_tensor", "make_meshes", "parallelize"]
'''

STAGED_TAIL = '''\


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
