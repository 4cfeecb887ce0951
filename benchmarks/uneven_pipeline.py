"""A searched cut against one of equal layers, where layers take unequal times.

    PYTHONPATH=. python benchmarks/uneven_pipeline.py --rounds 3 --steps 5

Convolutions of large images come before as many wide layers that compute less. The
model is cut into two stages, once where the step is predicted to be the fastest and
once into as many layers each. Both run on two local gloo ranks in turns; medians are
printed.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import torch
from tests.models.pipelines import ConvStem
from torch import Tensor, nn

import partita as pt
from partita.compiler.capture.capture import capture
from partita.compiler.search.arrange import Arranger, Best
from partita.compiler.search.arrangement import SINGLE
from partita.compiler.search.parts import Clock
from partita.microbatched import in_microbatches
from partita.one_mesh.planner import Planner
from partita.pipelines.cutter import Cutter
from partita.pipelines.pipeline_space import PipelineSpace
from partita.pipelines.staged import arranged
from partita.runtime.launch import launch

_WARM_UP = 2


def build(batch: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Return the model and a batch."""
    torch.manual_seed(0)
    model = ConvStem(channels=32, width=512)
    return model, (torch.randn(batch, 3, 32, 32), torch.randn(batch, 512))


def measure(batch: int, document: dict[str, Any], steps: int) -> list[float]:
    """Return the seconds of this rank's steps."""
    model, args = build(batch)
    program = pt.compile(model, pt.Plan.from_dict(document), device="cpu")
    optimizer = torch.optim.AdamW(program.parameters(), lr=1e-3)
    seconds: list[float] = []
    for _ in range(_WARM_UP + steps):
        torch.distributed.barrier()
        started = time.perf_counter()
        program.step(*args)
        optimizer.step()
        optimizer.zero_grad()
        torch.distributed.barrier()
        seconds.append(time.perf_counter() - started)
    return seconds[_WARM_UP:]


def equal_layers(batch: int, options: pt.Options) -> pt.Plan:
    """Return the plan of two stages of as many layers each."""
    model, args = build(batch)
    assert isinstance(options.microbatches, int)
    captured = capture(model, args, {})
    captured = in_microbatches(captured, options.microbatches, options.rules)
    planner = Planner(captured, type(model).__name__, SINGLE, options)
    clock = Clock.of(options.time_limit)
    cutter = Cutter(planner, PipelineSpace.of_stages(2, SINGLE, options), clock)
    forward = cutter.plans.line.forward
    middle = next(at for at, key in enumerate(forward) if key.startswith("wide.0"))
    best, (form,) = Best(), cutter.forms
    place = (middle, len(forward)), (SINGLE, SINGLE)
    Arranger(form, cutter.stages(clock), best).offer(*place)
    assert best.arrangement is not None
    return arranged(cutter.plans, best.arrangement)


def main() -> None:
    """Print what both cuts were predicted to take, and took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--hardware", default="cpu-gloo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    asked = parser.parse_args()
    options = pt.Options(
        schedule="1f1b", microbatches=asked.microbatches, hardware=asked.hardware
    )
    model, args = build(asked.batch)
    plans = {
        "searched": pt.plan(model, *args, mesh="pp=2", options=options),
        "equal layers": equal_layers(asked.batch, options),
    }
    measured: dict[str, list[float]] = {name: [] for name in plans}
    for _ in range(asked.rounds):
        for name, plan in plans.items():
            ranks = launch(measure, 2, (asked.batch, plan.to_dict(), asked.steps))
            measured[name] += map(max, zip(*ranks, strict=True))
    for name, plan in plans.items():
        took, foretold = median(measured[name]), plan.predicted.seconds
        print(f"{name:14} predicted {foretold:.4f} s, measured {took:.4f} s")
    found, layers = plans.values()
    ratio = layers.predicted.seconds / found.predicted.seconds
    took = median(measured["equal layers"]) / median(measured["searched"])
    print(f"equal layers / searched: predicted {ratio:.2f}, measured {took:.2f}")


if __name__ == "__main__":
    main()
