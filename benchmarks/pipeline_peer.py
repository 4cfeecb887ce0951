"""1F1B by torch's own pipelining: its tracer cuts the model in halves of equal layers.

The tracer unties what is tied, so that a model with a tied embedding trains as another
one, and its loss shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import Schedule1F1B, SplitPoint, pipeline
from training_models import Batch, Regression, build
from turns import Step

Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

MICROBATCHES = 4


class _Logits(nn.Module):
    """A language model that returns nothing but its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def _next_words(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    wanted = ids[:, 1:].flatten()
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted)


def pipeline_step(name: str, optimizer: Optimizer) -> Step:
    """Return this rank's step of a model with a stage on each rank."""
    model, batch = build(name)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    run, x, target, loss_fn = _parts(model, batch)
    cuts = {name: SplitPoint.BEGINNING for name in _cuts(run, ranks)}
    pipe = pipeline(run, mb_args=(x.chunk(MICROBATCHES)[0],), split_spec=cuts)
    stage = pipe.build_stage(rank, device=torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=loss_fn)
    updated = optimizer(stage.submod.parameters())

    def step() -> torch.Tensor:
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == ranks - 1:
            schedule.step(target=target, losses=losses)
        else:
            schedule.step()
        updated.step()
        updated.zero_grad()
        # The last rank alone knows the loss; its share is what the mean is of.
        found = torch.stack(losses).mean() * ranks if losses else torch.zeros(())
        return found.detach()

    return step


def _parts(
    model: nn.Module, batch: Batch
) -> tuple[nn.Module, torch.Tensor, torch.Tensor, Loss]:
    """Return what is cut, its input, the target and the loss."""
    if isinstance(model, Regression):
        return model.body, batch["x"], batch["y"], nn.functional.mse_loss
    return _Logits(model), batch["input_ids"], batch["labels"], _next_words


def _cuts(model: nn.Module, ranks: int) -> list[str]:
    """Return the layers before which a model is cut into parts of equally many."""
    lists = (
        (name, each)
        for name, each in model.named_modules()
        if isinstance(each, nn.ModuleList | nn.Sequential)
    )
    name, layers = next(lists)
    prefix = f"{name}." if name else ""
    return [f"{prefix}{len(layers) * part // ranks}" for part in range(1, ranks)]
