"""Steps of training on one GPU: the plain model, compiled, and Partita's program.

    python benchmarks/one_gpu.py --models gpt2-medium,llama-1b --rounds 9

Each way trains a copy of the model with AdamW's fused kernel, in 16 bits or, with
``--precision autocast``, in float32 under autocast. The ways take turns in one process,
some steps each a round, in an order that changes. Printed are medians of a step's
milliseconds by the GPU's clock, the median of the ratio to the compiled model of the
same round, seconds of the first step, the most memory that tensors had in a step beside
what the plan predicts, and the loss after all steps.
"""

from __future__ import annotations

import argparse
import copy
import random
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch
from gpu_models import MODELS
from torch import nn
from training_models import Batch, loss_of
from turns import Step

import partita as pt

_WARM_UP = 2
_BASE = "compiled"
_GRAPHS = "reduce-overhead"


def _plain(
    model: nn.Module,
    batch: Batch,
    is_cast: bool,
    is_compiled: bool,
    mode: str | None = None,
) -> Step:
    run = torch.compile(model, dynamic=False, mode=mode) if is_compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16) if is_cast else nullcontext():
            loss = loss_of(run(**batch))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def _partita(model: nn.Module, batch: Batch, plan: pt.Plan, compilation: str) -> Step:
    program = pt.compile(model, plan, device="cuda", compilation=compilation)
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-4, fused=True)

    def step() -> torch.Tensor:
        loss = program.step(**batch)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


@dataclass
class Way:
    """A way to train and what was measured of it."""

    step: Step
    first_s: float
    peak_bytes: int
    ms: list[float] = field(default_factory=list[float])
    loss: float = 0.0

    def take_turn(self, num_steps: int) -> None:
        """Make some steps; note the milliseconds of one."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        loss = self.step()
        for _ in range(num_steps - 1):
            loss = self.step()
        end.record()
        torch.cuda.synchronize()
        self.ms.append(begin.elapsed_time(end) / num_steps)
        self.loss = float(loss)


def started(make: Callable[[nn.Module], Step], model: nn.Module) -> Way:
    """Return a way to train a copy of a model, after its first steps.

    Memory is what it alone takes.
    """
    others = torch.cuda.memory_allocated()
    began = time.perf_counter()
    step = make(copy.deepcopy(model))
    step()
    torch.cuda.synchronize()
    first_s = time.perf_counter() - began
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return Way(step, first_s, torch.cuda.max_memory_allocated() - others)


def plan_of(model: nn.Module, batch: Batch, is_cast: bool, hardware: str) -> pt.Plan:
    """Return the plan of one rank."""
    options = pt.Options(
        hardware=hardware,
        optimizer="fused-adamw",
        precision="bfloat16" if is_cast else None,
        fuse=True,
    )
    named: dict[str, Any] = {**batch}
    return pt.plan(model, mesh=pt.Mesh(dp=1), options=options, **named)


def measure(name: str, asked: argparse.Namespace) -> str:
    """Return a model's table."""
    is_cast = asked.precision == "autocast"
    model, batch = MODELS[name].built(torch.float32 if is_cast else torch.bfloat16)
    began = time.perf_counter()
    plan = plan_of(model, batch, is_cast, asked.hardware)
    planned_s = time.perf_counter() - began
    every: dict[str, Callable[[nn.Module], Step]] = {
        "eager": lambda own: _plain(own, batch, is_cast, False),
        "compiled": lambda own: _plain(own, batch, is_cast, True),
        "compiled graph": lambda own: _plain(own, batch, is_cast, True, _GRAPHS),
        "partita eager": lambda own: _partita(own, batch, plan, "eager"),
        "partita regions": lambda own: _partita(own, batch, plan, "regions"),
        "partita": lambda own: _partita(own, batch, plan, "whole"),
        "partita graph": lambda own: _partita(own, batch, plan, "cuda-graph"),
    }
    ways: dict[str, Way] = {}
    for peer in asked.peers.split(","):
        ways[peer] = started(every[peer], model)
    order = list(ways.values())
    shuffle = random.Random(0).shuffle
    for _ in range(_WARM_UP + asked.rounds):
        shuffle(order)
        for way in order:
            way.take_turn(asked.steps)
    heads = "ms", "ratio", "first s", "peak MB", "plan MB", "loss"
    rows = [
        f"{name}, {asked.precision}, planned in {planned_s:.1f} s",
        " " * 20 + "".join(f"{head:>10}" for head in heads),
    ]
    for peer, way in ways.items():
        ms, base = way.ms[_WARM_UP:], ways[_BASE].ms[_WARM_UP:]
        ratio = median(a / b for a, b in zip(ms, base, strict=True))
        predicted = plan.predicted.bytes / 1e6 if peer.startswith("partita") else 0.0
        rows.append(
            f"{peer:20}{median(ms):10.3f}{ratio:10.3f}{way.first_s:10.1f}"
            f"{way.peak_bytes / 1e6:10.0f}{predicted:10.0f}{way.loss:10.4f}"
        )
    return "\n".join(rows)


def main() -> None:
    """Print a table per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--peers", default="eager,compiled,partita")
    parser.add_argument("--precision", choices=("16 bits", "autocast"))
    parser.add_argument("--hardware", default="h100-dgx")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5)
    parser.set_defaults(precision="16 bits")
    asked = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__)
    for name in asked.models.split(","):
        print(measure(name, asked), flush=True)


if __name__ == "__main__":
    main()
