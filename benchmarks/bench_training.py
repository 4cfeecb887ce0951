"""Steps of training, Partita's beside those of torch's own ways, on local ranks.

    python benchmarks/bench_training.py --models gpt2-4k,tiny --rounds 7

All take turns in the same processes, each some steps a round, in an order that changes,
so that whatever else the machine does slows all of them alike. Printed are medians of
the slowest rank's seconds, the median of the ratio to the eager model in one process of
the same round, and the seconds of the first step. Losses are checked equal.
"""

from __future__ import annotations

import argparse
import random
import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from language_models import STRATEGIES
from training_models import MODELS, build
from training_peers import PEERS, Step

import partita as pt
from partita.runtime.launch import launch

_WARM_UP = 2
_AGREES = 1e-4  # of the loss, after all steps
_BASE = "eager"


def plan_of(name: str, peer: str, ranks: int, hardware: str) -> dict[str, Any]:
    """Return the plan that a peer runs, as a document; nothing for those of torch."""
    asked = PEERS[peer]
    if not asked.is_ours:
        return {}
    model, batch = build(name)
    pins = {} if asked.pins is None else STRATEGIES[asked.pins].pins(model)
    if asked.pins is not None:
        names = [each for each in pins if each not in ("input_ids", "labels")]
        pins = {each: pins[each] for each in names} | dict.fromkeys(batch, "S(0)")
    options = pt.Options(pins=pins, hardware=hardware, fuse=True)
    named: dict[str, Any] = {**batch}
    return pt.plan(model, mesh=pt.Mesh(dp=ranks), options=options, **named).to_dict()


def measure(
    name: str, plans: dict[str, dict[str, Any]], rounds: int, steps: int
) -> dict[str, dict[str, Any]]:
    """Return per peer this rank's seconds of every round, of the first step, the loss.

    A peer that cannot run says why.
    """
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_first = dist.get_rank() == 0
    made: dict[str, Step] = {}
    found: dict[str, dict[str, Any]] = {}
    for peer, plan in plans.items():
        if PEERS[peer].alone and not is_first:
            continue
        started = time.perf_counter()
        made[peer] = PEERS[peer].make(name, plan)
        made[peer]()
        found[peer] = {"first": time.perf_counter() - started, "seconds": []}
    order = list(plans)
    shuffle = random.Random(0).shuffle  # who comes after whom matters, so all do
    for number in range(-_WARM_UP, rounds):
        shuffle(order)
        for peer in order:
            spent: list[float] = []
            for _ in range(steps):
                dist.barrier()
                if peer in made:
                    started = time.perf_counter()
                    loss = made[peer]()
                    spent.append(time.perf_counter() - started)
                    found[peer]["loss"] = float(loss)
            if number >= 0 and spent:
                found[peer]["seconds"].append(median(spent))
    return found


def table(name: str, found: list[dict[str, dict[str, Any]]]) -> str:
    """Return a line per peer."""
    rows = [f"{name:32}{'ms':>9}{'ratio':>8}{'first s':>9}{'loss':>10}"]
    base = found[0][_BASE]["seconds"]
    for peer in found[0]:
        ranks = [rank[peer] for rank in found if peer in rank]
        slowest = [
            max(each) for each in zip(*(r["seconds"] for r in ranks), strict=True)
        ]
        ratio = median(a / b for a, b in zip(slowest, base, strict=True))
        loss = sum(r["loss"] for r in ranks) / len(ranks)
        wanted = found[0][_BASE]["loss"]
        wrong = "" if abs(loss - wanted) <= _AGREES * abs(wanted) else "  WRONG LOSS"
        rows.append(
            f"{peer:32}{median(slowest) * 1e3:9.2f}{ratio:8.3f}"
            f"{max(r['first'] for r in ranks):9.1f}{loss:10.5f}{wrong}"
        )
    return "\n".join(rows)


def main() -> None:
    """Print a table per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--hardware", default="cpu-gloo")
    asked = parser.parse_args()
    peers = asked.peers.split(",")
    for name in asked.models.split(","):
        plans = {p: plan_of(name, p, asked.ranks, asked.hardware) for p in peers}
        args = (name, plans, asked.rounds, asked.steps)
        print(table(name, launch(measure, asked.ranks, args)), flush=True)


if __name__ == "__main__":
    main()
