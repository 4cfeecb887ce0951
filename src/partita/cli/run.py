"""``partita run``: train on the example batch, on local ranks or torchrun's."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import torch

from partita.cli.command import (
    OK,
    Command,
    add_json,
    add_plan,
    add_target,
    print_json,
)
from partita.cli.loss import add_loss, load_plan
from partita.cli.rules import add_rules, load_rules
from partita.cli.target import load_target
from partita.compiler.errors import BadOptions
from partita.compiler.plan.units import format_seconds
from partita.runtime.compilation import Compilation

OPTIMIZERS = {
    "sgd": torch.optim.SGD,
    "momentum-sgd": partial(torch.optim.SGD, momentum=0.9),
    "adamw": torch.optim.AdamW,
    "fused-adamw": partial(torch.optim.AdamW, fused=True),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How every rank trains and runs, by which rules and loss, and what it tells."""

    steps: int
    optimizer: str
    lr: float
    rules: str | None
    loss: str | None
    compilation: str
    json: bool


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Ask for the model, the plan, and how to train."""
    add_target(parser)
    add_plan(parser)
    parser.add_argument("--steps", type=int, required=True, help="how many steps")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="adamw")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (0.001)")
    parser.add_argument(
        "--compilation",
        choices=[each.value for each in Compilation],
        default=Compilation.AUTO.value,
        help="run op by op, with the plan's fused ops compiled, compiled as a whole, "
        "so and as one CUDA graph, or as a whole where a plan of one stage fuses and "
        "has no memory limit (auto)",
    )
    add_loss(parser)
    add_rules(parser)
    add_json(parser)


def run(options: argparse.Namespace) -> int:
    """Launch the ranks and report what the first of them saw."""
    if options.steps < 1:
        raise BadOptions(f"--steps {options.steps}: want 1 or more")
    if not 0 <= options.lr < inf:
        raise BadOptions(f"--lr {options.lr}: want 0 or more, and finite")
    plan = load_plan(options.plan, options.loss)
    load_target(options.target)  # so that a bad one is told here, not by every rank
    load_rules(options.rules)

    from partita.runtime.launch import launch

    settings = Settings(
        options.steps,
        options.optimizer,
        options.lr,
        options.rules,
        options.loss,
        options.compilation,
        options.json,
    )
    what = (options.target, options.plan, settings)
    losses, seconds = launch(train_rank, plan.mesh.size, what)[0]
    if options.json and _is_first():
        print_json({"losses": losses, "seconds": seconds})
    return OK


def train_rank(
    target: str, plan_path: str, settings: Settings
) -> tuple[list[float], list[float]]:
    """Train on this rank; return the loss and the time of each step.

    The first rank tells each of them, on standard error where figures are to follow.
    """
    import partita as pt

    example = load_target(target)
    rules = load_rules(settings.rules)
    plan, how = load_plan(plan_path, settings.loss), settings.compilation
    program = pt.compile(example.model, plan, rules=rules, compilation=how)
    kind = OPTIMIZERS[settings.optimizer]
    optimizer: Any = kind(program.parameters(), lr=settings.lr)
    is_scaled = plan.options.precision == "float16"
    scaler = pt.LossScaler(program) if is_scaled else None
    losses: list[float] = []
    seconds: list[float] = []
    for index in range(settings.steps):
        started = time.perf_counter()
        loss = program.step(*example.args, **example.kwargs)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
        optimizer.zero_grad()
        losses.append(float(loss))
        seconds.append(time.perf_counter() - started)
        if _is_first():
            text = f"step {index + 1:4d}  loss {losses[-1]:.6f}  "
            stream = sys.stderr if settings.json else sys.stdout
            print(text + format_seconds(seconds[-1]), file=stream, flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return losses, seconds


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


COMMAND = Command(
    name="run",
    summary="train a few steps on the example batch, on local ranks or torchrun's",
    example="partita run train.py:build gpt2.plan.json --steps 10 --lr 3e-4",
    add_arguments=add_arguments,
    run=run,
)
