"""A step with small ops fused, without, and the eager model in one process.

    python benchmarks/bench_fusion.py --ranks 2 --hidden 256

GPT-2 from transformers, random weights. The three take turns in the same processes,
so that whatever else the machine does slows all of them alike.
"""

from __future__ import annotations

import argparse
import random
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

WARM_UP = 2  # rounds that do not count


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


def measure(sizes: dict[str, int], document: dict[str, Any]) -> dict[str, list[float]]:
    """Return this rank's seconds of each kind of step, of every round."""
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
    found["first fused"] = [seconds_of(steps["fused"])]
    order = list(steps)
    shuffle = random.Random(0).shuffle  # who comes after whom matters, so all do
    for number in range(-WARM_UP, case.rounds):
        shuffle(order)
        for name in order:
            torch.distributed.barrier()
            if name != "eager" or torch.distributed.get_rank() == 0:
                seconds = seconds_of(steps[name])
                if number >= 0:
                    found[name].append(seconds)
    return found


def main() -> None:
    """Print what each kind of step takes."""
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
        middle, least = median(seconds) * 1e3, min(seconds) * 1e3
        print(f"  {name:<12} median {middle:9.1f} ms, least {least:9.1f} ms")


if __name__ == "__main__":
    main()
