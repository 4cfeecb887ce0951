"""A step with small ops fused, without, and the eager model in one process.

    python benchmarks/bench_fusion.py --ranks 2 --hidden 256

GPT-2 from transformers, random weights. The three take turns in the same processes,
so that whatever else the machine does slows all of them alike; medians over rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import torch
import transformers

import partita as pt
from partita.runtime.launch import launch

Batch = dict[str, Any]
Step = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """A model, its batch and how long to measure."""

    layers: int
    hidden: int
    batch: int
    sequence: int
    rounds: int

    def build(self) -> tuple[torch.nn.Module, Batch]:
        """Return the model and a batch of token ids, which are their own labels."""
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            n_layer=self.layers,
            n_embd=self.hidden,
            n_head=4,
            vocab_size=512,
            n_positions=self.sequence,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
        ids = torch.randint(0, 512, (self.batch, self.sequence))
        model: Any = transformers.GPT2LMHeadModel(config)
        return model, {"input_ids": ids, "labels": ids}


def seconds_of(step: Step) -> float:
    """Return how long one step takes."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure(sizes: dict[str, int], document: dict[str, Any]) -> dict[str, float]:
    """Return this rank's median seconds of each kind of step, and of compiling."""
    case = Case(**sizes)
    model, batch = case.build()
    plan = pt.Plan.from_dict(document)
    fused = pt.compile(model, plan, device="cpu")
    unfused = pt.compile(model, replace(plan, fusion=()), device="cpu")

    def eager() -> None:
        model(**batch).loss.backward()

    steps: dict[str, Step] = {
        "fused": lambda: fused.step(**batch),
        "unfused": lambda: unfused.step(**batch),
        "eager": eager,
    }
    found: dict[str, list[float]] = {name: [] for name in steps}
    first_s = seconds_of(steps["fused"])
    for _ in range(case.rounds):
        for name, step in steps.items():
            if name != "eager" or torch.distributed.get_rank() == 0:
                torch.distributed.barrier() if name != "eager" else None
                found[name].append(seconds_of(step))
    medians = {name: median(times[2:]) for name, times in found.items() if times}
    return medians | {"first fused step": first_s}


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    case = Case(
        options.layers,
        options.hidden,
        options.batch,
        options.sequence,
        options.rounds,
    )
    model, batch = case.build()
    plan = pt.plan(
        model, mesh=pt.Mesh(dp=options.ranks), options=pt.Options(fuse=True), **batch
    )
    num_ops = sum(len(group) for group in plan.fusion)
    print(f"{case}, {options.ranks} ranks: {num_ops} ops in {len(plan.fusion)} groups")
    found = launch(measure, options.ranks, (asdict(case), plan.to_dict()))[0]
    for name, seconds in found.items():
        print(f"  {name:<17}{seconds * 1e3:10.1f} ms")


if __name__ == "__main__":
    main()
