"""How people train on a few ranks today, and Partita: one step of each, alike.

Every peer trains the same model on the same global batch with AdamW. A step returns
the loss of this rank's share, whose mean over the ranks is the global one. A peer that
runs in one process runs on rank 0 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from pipeline_peer import MICROBATCHES, pipeline_step
from tensor_parallel_peer import tensor_parallel_step
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from training_models import Batch, build, loss_of
from turns import Step

import partita as pt

Make = Callable[[str, dict[str, Any]], Step]

_RATE = 1e-3


def adamw(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer that all peers use."""
    return torch.optim.AdamW(parameters, lr=_RATE, fused=True)


def _share(batch: Batch) -> Batch:
    """Return this rank's rows of a batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return {name: rows.chunk(ranks)[rank] for name, rows in batch.items()}


def _training(
    model: Callable[..., Any], batch: Batch, optimizer: torch.optim.Optimizer
) -> Step:
    def step() -> torch.Tensor:
        loss = loss_of(model(**batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _eager(name: str, _: dict[str, Any]) -> Step:
    model, batch = build(name)
    return _training(model, batch, adamw(model.parameters()))


def _compiled(name: str, _: dict[str, Any]) -> Step:
    model, batch = build(name)
    optimizer = adamw(model.parameters())
    return _training(torch.compile(model), batch, optimizer)


def _apart(name: str, _: dict[str, Any]) -> Step:
    model, batch = build(name)
    optimizer = adamw(model.parameters())
    return _training(torch.compile(model), _share(batch), optimizer)


def _ddp(name: str, _: dict[str, Any]) -> Step:
    model, batch = build(name)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    return _training(parallel, _share(batch), adamw(model.parameters()))


def _ddp_compiled(name: str, _: dict[str, Any]) -> Step:
    model, batch = build(name)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = adamw(model.parameters())
    return _training(torch.compile(parallel), _share(batch), optimizer)


def _fsdp2(name: str, _: dict[str, Any], is_compiled: bool = False) -> Step:
    model, batch = build(name)
    for layers in model.modules():
        if isinstance(layers, nn.ModuleList | nn.Sequential):
            for layer in layers:
                if any(True for _ in layer.parameters()):
                    fully_shard(layer)
                    if is_compiled:  # layer by layer, as its authors advise
                        layer.compile()
    fully_shard(model)
    return _training(model, _share(batch), adamw(model.parameters()))


def _zero(name: str, _: dict[str, Any]) -> Step:
    model, batch = build(name)
    parallel = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, lr=_RATE, fused=True
    )
    return _training(parallel, _share(batch), optimizer)


def _tensor_parallel(name: str, _: dict[str, Any], is_compiled: bool = False) -> Step:
    return tensor_parallel_step(name, adamw, is_compiled)


def _pipeline(name: str, _: dict[str, Any]) -> Step:
    return pipeline_step(name, adamw)


def _partita(name: str, plan: dict[str, Any], compilation: str = "auto") -> Step:
    model, batch = build(name)
    found = pt.Plan.from_dict(plan)
    program = pt.compile(model, found, device="cpu", compilation=compilation)
    optimizer = adamw(program.parameters())

    def step() -> torch.Tensor:
        loss = program.step(**batch)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


_partita_compiled = partial(_partita, compilation="whole")
_partita_eager = partial(_partita, compilation="eager")


@dataclass(frozen=True)
class Asked:
    """What a plan of Partita's is asked for; nothing leaves it to its search.

    Attributes:
        strategy: whose pins are wanted: ``"data parallel"``, ``"ZeRO-3"`` or
            ``"Megatron"``; ``None``: no pins.
        microbatches: of a pipeline by 1F1B, on an axis ``pp``; 0: no pipeline.
    """

    strategy: str | None = None
    microbatches: int = 0


@dataclass(frozen=True)
class Peer:
    """One way to train: how it is made, and whether it needs one process alone.

    ``asked`` is of Partita's ways. In one of ``many`` models each rank trains its own
    on its rows and tells nobody: what ranks leave each other of the machine's speed.
    """

    make: Make
    alone: bool = False
    asked: Asked | None = None
    many: bool = False


PEERS: dict[str, Peer] = {
    "eager": Peer(_eager, alone=True),
    "compiled": Peer(_compiled, alone=True),
    "compiled apart": Peer(_apart, many=True),
    "ddp": Peer(_ddp),
    "ddp compiled": Peer(_ddp_compiled),
    "fsdp2": Peer(_fsdp2),
    "fsdp2 compiled": Peer(partial(_fsdp2, is_compiled=True)),
    "zero": Peer(_zero),
    "tensor parallel": Peer(_tensor_parallel),
    "tensor parallel compiled": Peer(partial(_tensor_parallel, is_compiled=True)),
    "1f1b": Peer(_pipeline),
    "partita": Peer(_partita, asked=Asked()),
    "partita compiled": Peer(_partita_compiled, asked=Asked()),
}
for _strategy in ("data parallel", "ZeRO-3", "ZeRO-3 gathered twice", "Megatron"):
    _asked = Asked(_strategy)
    PEERS[f"partita {_strategy}"] = Peer(_partita, asked=_asked)
    PEERS[f"partita {_strategy} compiled"] = Peer(_partita_compiled, asked=_asked)
    # Without Inductor, as torch's own are: what is held of it is no tensor of a step.
    PEERS[f"partita {_strategy} eager"] = Peer(_partita_eager, asked=_asked)
PEERS["partita 1f1b"] = Peer(_partita, asked=Asked(microbatches=MICROBATCHES))


def make_step(peer: str, name: str, plan: dict[str, Any]) -> Step:
    """Return this rank's step of a peer."""
    return PEERS[peer].make(name, plan)
