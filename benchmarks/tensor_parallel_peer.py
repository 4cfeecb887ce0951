"""Megatron's plan by torch's own tensor parallelism: DTensor's styles of modules.

``transformers``' Conv1D keeps its matrix as [in, out], which torch's styles do not
know: it becomes an ``nn.Linear`` of the same values first. The rows of a matrix that
makes queries, keys and values at once are put in an order in which each rank's piece
has whole heads of all three, as Megatron stores them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from training_matrices import Matrices
from training_models import build, loss_of
from turns import Step

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def tensor_parallel_step(name: str, optimizer: Optimizer, is_compiled: bool) -> Step:
    """Return this rank's step of a model that all ranks share the matrices of."""
    model, batch = build(name)
    has_head = _parallelize(model)
    # One kernel cannot update DTensors and tensors together, so each has an optimizer.
    split = [p for p in model.parameters() if isinstance(p, DTensor)]
    whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
    optimizers = [optimizer(each) for each in (split, whole) if each]
    run = torch.compile(model) if is_compiled else model

    def step() -> torch.Tensor:
        with loss_parallel() if has_head else nullcontext():
            loss = loss_of(run(**batch))
            loss.backward()
        for each in optimizers:
            each.step()
            each.zero_grad()
        found = loss.detach()
        return found.full_tensor() if isinstance(found, DTensor) else found

    return step


def _parallelize(model: nn.Module) -> bool:
    """Split the matrices of a model; return whether its logits are split, too."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    ranks, found = mesh.size(), Matrices.of(model)
    tied = {
        name: embedding
        for name in found.heads
        for embedding in found.embeddings
        if _weight(model, name) is _weight(model, embedding)
    }
    for name in (*found.columns, *found.rows):
        _make_linear(model, name, ranks)
    styles: dict[str, ParallelStyle] = {}
    styles |= {name: ColwiseParallel() for name in found.columns}
    styles |= {name: RowwiseParallel() for name in found.rows}
    for name in found.embeddings:
        styles[name] = RowwiseParallel(input_layouts=Replicate())
    for name in found.heads:
        styles[name] = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, styles)
    for name, embedding in tied.items():
        model.get_submodule(name).weight = _weight(model, embedding)
    return bool(found.heads)


def _weight(model: nn.Module, name: str) -> nn.Parameter:
    weight = model.get_submodule(name).weight
    assert isinstance(weight, nn.Parameter)
    return weight


def _make_linear(model: nn.Module, name: str, ranks: int) -> None:
    """Put an ``nn.Linear`` in the place of a Conv1D, each rank's rows together."""
    conv = model.get_submodule(name)
    if isinstance(conv, nn.Linear):
        return
    weight, bias = _weight(model, name).detach().T, conv.bias
    assert isinstance(bias, nn.Parameter)
    parent, _, last = name.rpartition(".")
    owner = model.get_submodule(parent)
    parts = 3 if last == "c_attn" else 1
    if parts == 3:  # what it is split into are a rank's own heads
        vars(owner)["split_size"] = weight.shape[0] // parts // ranks
    rows = torch.arange(weight.shape[0])
    rows = rows.view(parts, ranks, -1).transpose(0, 1).flatten()
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        linear.weight.copy_(weight[rows])
        linear.bias.copy_(bias[rows])
    setattr(owner, last, linear)
